// The n best tokens of rows of logits: of every chunk, then of all chunks' best; and how many
// tokens equal the last of them. A bound that exactly n keys reach is found bit by bit; keys are
// distinct, because they hold the token.
#include "runtime/ops/cuda/rows/row_chunk.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kMergeThreads = 512;

struct SelectSpace {
  uint32_t counters[3];  // of bits in turn, so that one sync_block() a bit is enough
  uint32_t num_written;
};

// A bound that exactly `wanted` of the block's distinct keys reach; there are at least so many.
// count(bound): of this thread's keys. All threads of the block.
template <typename Count>
OUTRIDER_DEVICE uint64_t bound_of_best(uint32_t wanted, SelectSpace* space, const Count& count) {
  if (thread_id() < 3) space->counters[thread_id()] = 0;
  if (thread_id() == 0) space->num_written = 0;
  sync_block();
  uint64_t bound = 0;
  uint32_t turn = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t higher = bound | uint64_t{1} << bit;
    const auto of_warp = static_cast<uint32_t>(sum_over_warp(count(higher)));
    if (lane_id() == 0 && of_warp != 0) atomic_add(&space->counters[turn], of_warp);
    sync_block();
    const uint32_t reached = space->counters[turn];
    if (thread_id() == 0) space->counters[(turn + 2) % 3] = 0;
    turn = (turn + 1) % 3;
    if (reached < wanted) continue;
    bound = higher;
    if (reached == wanted) break;
  }
  return bound;
}

OUTRIDER_KERNEL(kChunkThreads) void chunk_top_kernel(RowTasks tasks) {
  const TopTask task = tasks.tops[block_id().x];
  const ScannedRow row = tasks.rows[task.row];
  const Chunk chunk = chunk_of(row.size);
  if (chunk.count <= 0) return;
  auto* const space = shared_memory<SelectSpace>();
  auto* const values = reinterpret_cast<float*>(space + 1);  // [kChunkTokens]
  note_bad(task.bad, load_chunk(row, chunk, task.ceiling, values));
  const int32_t first_token = row.first_token + chunk.begin;
  const int32_t slots = chunk_candidates(task.n);
  const int32_t wanted = slots < chunk.count ? slots : chunk.count;
  uint64_t* const out = task.candidates + static_cast<int64_t>(block_id().y) * slots;
  for (auto i = wanted + static_cast<int32_t>(thread_id()); i < slots; i += kChunkThreads) {
    out[i] = 0;
  }
  const uint64_t bound = bound_of_best(static_cast<uint32_t>(wanted), space, [&](uint64_t least) {
    uint64_t reached = 0;
    for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
      reached += pack_key(values[i], first_token + i) >= least ? 1 : 0;
    }
    return reached;
  });
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    const uint64_t key = pack_key(values[i], first_token + i);
    if (key >= bound) out[atomic_next(&space->num_written)] = key;
  }
}

OUTRIDER_KERNEL(kMergeThreads) void merge_top_kernel(RowTasks tasks) {
  const TopTask task = tasks.tops[block_id().x];
  const int32_t size = tasks.rows[task.row].size;
  const int64_t num_candidates = top_candidates(size, task.n);
  const int32_t wanted = task.n < size ? task.n : size;
  if (wanted <= 0) return;
  auto* const space = shared_memory<SelectSpace>();
  const uint64_t bound = bound_of_best(static_cast<uint32_t>(wanted), space, [&](uint64_t least) {
    uint64_t reached = 0;
    for (auto i = static_cast<int64_t>(thread_id()); i < num_candidates; i += kMergeThreads) {
      reached += task.candidates[i] >= least ? 1 : 0;
    }
    return reached;
  });
  uint64_t flipped_last = 0;
  for (auto i = static_cast<int64_t>(thread_id()); i < num_candidates; i += kMergeThreads) {
    const uint64_t key = task.candidates[i];
    if (key < bound) continue;
    task.keys[atomic_next(&space->num_written)] = key;
    flipped_last = larger(flipped_last, ~key);
  }
  max_of_block(task.flipped_last, flipped_last);
}

OUTRIDER_KERNEL(kChunkThreads) void count_last_kernel(RowTasks tasks) {
  const TopTask task = tasks.tops[block_id().x];
  const ScannedRow row = tasks.rows[task.row];
  const Chunk chunk = chunk_of(row.size);
  if (chunk.count <= 0 || task.counts_last == 0 || task.n > row.size) return;
  auto* const values = shared_memory<float>();  // [kChunkTokens]
  load_chunk(row, chunk, task.ceiling, values);
  const float last = key_score(~*task.flipped_last);
  uint64_t num_last = 0;
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    num_last += values[i] == last ? 1 : 0;
  }
  add_of_block(task.num_last, num_last);
}

constexpr size_t kChunkBytes = sizeof(SelectSpace) + kChunkTokens * sizeof(float);

}  // namespace

void find_top(Stream& stream, const RowTasks& tasks) {
  const LaunchShape of_chunks = chunk_shape(tasks.most_tokens, tasks.num_tops, kChunkBytes);
  launch(stream, chunk_top_kernel, of_chunks, tasks);
  launch(stream,
         merge_top_kernel,
         {.grid = {static_cast<uint32_t>(tasks.num_tops)},
          .threads = kMergeThreads,
          .shared_bytes = sizeof(SelectSpace)},
         tasks);
  if (tasks.counts_last) launch(stream, count_last_kernel, of_chunks, tasks);
}

}  // namespace outrider::gpu
