// The best token of rows of logits, and the best with Gumbel noise: a draw from the softmax.
#include "runtime/ops/cuda/rows/noise_bound.h"
#include "runtime/ops/cuda/rows/row_chunk.h"

namespace outrider::gpu {
namespace {

struct DrawSpace {
  float* values;   // [kChunkTokens]
  uint32_t* bits;  // [kChunkTokens]
  uint64_t* best;  // [1]
};

OUTRIDER_DEVICE uint64_t noisy_key(float value, uint32_t bits, int32_t token) {
  const double score = exact_add(static_cast<double>(value), gumbel_from_bits(bits));
  return pack_key(static_cast<float>(score), token);
}

// The noise of the chunk's tokens. One block of it serves four neighbours.
OUTRIDER_DEVICE void make_noise(const NoiseKey& noise,
                                const Chunk& chunk,
                                int32_t first_token,
                                uint32_t* bits) {
  const auto first = static_cast<uint32_t>(first_token + chunk.begin);
  const auto skipped = static_cast<int32_t>(first % 4);
  const int32_t num_blocks = (skipped + chunk.count + 3) / 4;
  for (auto b = static_cast<int32_t>(thread_id()); b < num_blocks; b += kChunkThreads) {
    const PhiloxBlock block = noise_block(noise, first / 4 + static_cast<uint32_t>(b));
    for (int32_t lane = 0; lane < 4; ++lane) {
      const int32_t i = 4 * b + lane - skipped;
      if (i >= 0 && i < chunk.count) bits[i] = block.lane[lane];
    }
  }
}

// This thread's best noisy key. First every thread scores the one of its tokens that may get
// highest; then only those that may beat the best of these.
OUTRIDER_DEVICE uint64_t draw(const BestTask& task,
                              const Chunk& chunk,
                              int32_t first_token,
                              const DrawSpace& space) {
  if (thread_id() == 0) *space.best = 0;
  make_noise(task.noise, chunk, first_token, space.bits);
  sync_block();
  const auto token_of = [&](int32_t i) { return first_token + chunk.begin + i; };
  uint64_t key = pack_key(kMasked, first_token);
  float highest = kMasked;
  int32_t likeliest = -1;
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    if (!(space.values[i] >= task.cut) || space.values[i] == kMasked) continue;
    const float score = highest_score(space.values[i], space.bits[i], 0.0f);
    if (!(score > highest)) continue;
    highest = score;
    likeliest = i;
  }
  if (likeliest >= 0) {
    key =
        larger(key, noisy_key(space.values[likeliest], space.bits[likeliest], token_of(likeliest)));
  }
  max_of_block(space.best, key);
  sync_block();
  const float to_beat = key_score(*space.best);
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    const float value = space.values[i];
    if (i == likeliest || !(value >= task.cut) || value == kMasked) continue;
    if (highest_score(value, space.bits[i], to_beat) < to_beat) continue;
    key = larger(key, noisy_key(value, space.bits[i], token_of(i)));
  }
  return key;
}

OUTRIDER_KERNEL(kChunkThreads) void best_kernel(RowTasks tasks) {
  const BestTask task = tasks.bests[block_id().x];
  const ScannedRow row = tasks.rows[task.row];
  const Chunk chunk = chunk_of(row.size);
  if (chunk.count <= 0) return;
  auto* const best = shared_memory<uint64_t>();
  auto* const values = reinterpret_cast<float*>(best + 2);
  auto* const bits = reinterpret_cast<uint32_t*>(values + kChunkTokens);
  note_bad(task.bad, load_chunk(row, chunk, task.ceiling, values));
  mask_listed(task.without, task.num_without, chunk, values);
  uint64_t key = 0;
  if (task.draws != 0) {
    key = draw(task, chunk, row.first_token, {values, bits, best});
  } else {
    for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
      key = larger(key, pack_key(values[i], row.first_token + chunk.begin + i));
    }
  }
  max_of_block(task.key, key);
}

}  // namespace

void find_best(Stream& stream, const RowTasks& tasks) {
  constexpr size_t kBytes = 16 + kChunkTokens * (sizeof(float) + sizeof(uint32_t));
  launch(stream, best_kernel, chunk_shape(tasks.most_tokens, tasks.num_bests, kBytes), tasks);
}

}  // namespace outrider::gpu
