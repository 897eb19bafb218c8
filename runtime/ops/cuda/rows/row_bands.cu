// One digit of a radix selection over rows of logits (scheduler/sampling/truncation.cpp).
#include "runtime/ops/cuda/rows/row_chunk.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kBands = 256;
static_assert(kBands == kChunkThreads);
constexpr float kNoCeiling = std::numeric_limits<float>::infinity();

OUTRIDER_KERNEL(kChunkThreads) void band_kernel(RowTasks tasks) {
  const BandTask task = tasks.bands[block_id().x];
  const ScannedRow row = tasks.rows[task.row];
  const Chunk chunk = chunk_of(row.size);
  if (chunk.count <= 0) return;
  auto* const bands = shared_memory<uint64_t>();                  // [kBands]
  auto* const values = reinterpret_cast<float*>(bands + kBands);  // [kChunkTokens]
  bands[thread_id()] = 0;
  load_chunk(row, chunk, kNoCeiling, values);
  const bool is_first = task.shift == 24;
  for (auto i = static_cast<int32_t>(thread_id()); i < chunk.count; i += kChunkThreads) {
    const float scaled = values[i];
    if (!(scaled >= task.cut)) continue;
    const uint32_t distance = keep_distance(task.max, task.center, scaled);
    // As one number of 64 bits, or the first digit's shift would be all of it.
    const uint64_t differs = uint64_t{distance ^ task.farthest} >> (task.shift + 8);
    if (!is_first && differs != 0) continue;
    const double below_max = static_cast<double>(scaled) - static_cast<double>(task.max);
    const uint64_t amount = task.by_mass != 0 ? fixed_weight(below_max) : 1;
    if (amount != 0) atomic_add(&bands[(distance >> task.shift) & 0xffu], amount);
  }
  sync_block();
  if (bands[thread_id()] != 0) atomic_add(&task.bands[thread_id()], bands[thread_id()]);
}

}  // namespace

void fill_bands(Stream& stream, const RowTasks& tasks) {
  constexpr size_t kBytes = kBands * sizeof(uint64_t) + kChunkTokens * sizeof(float);
  launch(stream, band_kernel, chunk_shape(tasks.most_tokens, tasks.num_bands, kBytes), tasks);
}

}  // namespace outrider::gpu
