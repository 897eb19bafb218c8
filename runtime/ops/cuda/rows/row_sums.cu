// Of rows of logits: raw values of given tokens, fixed-point masses and moments, ranks of tokens.
#include "runtime/ops/cuda/rows/row_chunk.h"

namespace outrider::gpu {
namespace {

OUTRIDER_KERNEL(kChunkThreads) void read_kernel(RowTasks tasks) {
  const ReadTask task = tasks.reads[block_id().x];
  const auto i = static_cast<int32_t>(block_id().y * kChunkThreads + thread_id());
  if (i >= task.num_rows * task.num_index) return;
  const int64_t row = i / task.num_index;
  task.values[i] = task.logits[row * task.stride + task.index[i % task.num_index]];
}

// So far below the maximum weights and moments are 0 (fixed_weight, fixed_moment).
constexpr double kNothingBelow = -40.0;

OUTRIDER_KERNEL(kChunkThreads) void sum_kernel(RowTasks tasks) {
  const SumTask task = tasks.sums[block_id().x];
  const ScannedRow row = tasks.rows[task.row];
  const Chunk chunk = chunk_of(row.size);
  if (chunk.count <= 0) return;
  auto* const values = shared_memory<float>();  // [kChunkTokens]
  load_chunk(row, chunk, task.ceiling, values);
  uint64_t mass = 0;
  uint64_t moment = 0;
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    const float scaled = values[i];
    const double below_max = static_cast<double>(scaled) - static_cast<double>(task.max);
    if (!(scaled >= task.cut) || !(below_max >= kNothingBelow)) continue;
    mass += fixed_weight(below_max);
    if (task.moment != nullptr) moment += fixed_moment(below_max);
  }
  add_of_block(task.mass, mass);
  if (task.moment != nullptr) add_of_block(task.moment, moment);
}

OUTRIDER_KERNEL(kChunkThreads) void rank_kernel(RowTasks tasks) {
  const RankTask task = tasks.ranks[block_id().x];
  const ScannedRow row = tasks.rows[task.row];
  const Chunk chunk = chunk_of(row.size);
  if (chunk.count <= 0) return;
  uint64_t num_before = 0;
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    const float value = row.logits[chunk.begin + i];
    const bool comes_first = row.first_token + chunk.begin + i < task.token;
    if (value > task.value || (value == task.value && comes_first)) ++num_before;
  }
  add_of_block(task.num_before, num_before);
}

constexpr size_t kChunkBytes = kChunkTokens * sizeof(float);

}  // namespace

void read_values(Stream& stream, const RowTasks& tasks) {
  const auto blocks =
      (static_cast<uint32_t>(tasks.most_values) + kChunkThreads - 1) / kChunkThreads;
  launch(stream,
         read_kernel,
         {.grid = {static_cast<uint32_t>(tasks.num_reads), blocks}, .threads = kChunkThreads},
         tasks);
}

void sum_rows(Stream& stream, const RowTasks& tasks) {
  launch(stream, sum_kernel, chunk_shape(tasks.most_tokens, tasks.num_sums, kChunkBytes), tasks);
}

void rank_tokens(Stream& stream, const RowTasks& tasks) {
  launch(stream, rank_kernel, chunk_shape(tasks.most_tokens, tasks.num_ranks, 0), tasks);
}

}  // namespace outrider::gpu
