// See gpu_memory.h.
#include "runtime/ranks/loading/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {
namespace {

double gigabytes(size_t num_bytes) { return static_cast<double>(num_bytes) / 1e9; }

}  // namespace

int32_t shared_num_blocks(std::span<const MemoryRequirement> requirements,
                          double utilization,
                          size_t total_bytes,
                          int32_t least_blocks) {
  OUTRIDER_CHECK(!requirements.empty());
  size_t weights = 0;
  size_t buffers = 0;
  size_t per_block = 0;
  for (const MemoryRequirement& requirement : requirements) {
    const auto copies = static_cast<size_t>(requirement.num_copies);
    const gpu::Type matrices = matrix_type(gpu_type(requirement.config.dtype), requirement.format);
    weights += copies * gpu_weight_bytes(requirement.config, requirement.shard, requirement.format);
    buffers += copies * (requirement.sums_bytes + gpu_buffer_bytes(requirement.config,
                                                                   requirement.shard,
                                                                   requirement.options,
                                                                   requirement.gpu,
                                                                   matrices));
    per_block += copies * gpu_kv_bytes_per_block(requirement.config,
                                                 requirement.shard,
                                                 requirement.options.block_size,
                                                 requirement.gpu.kv_type);
  }
  const auto budget = static_cast<size_t>(utilization * static_cast<double>(total_bytes));
  const size_t left = budget - std::min(budget, weights + buffers);
  const size_t num_blocks = std::min<size_t>(left / per_block, INT32_MAX / 4);
  if (num_blocks >= static_cast<size_t>(least_blocks)) return static_cast<int32_t>(num_blocks);
  throw Error(fmt::format(
      "the GPU's memory does not suffice: {:.3g} (gpu_memory_utilization) of {:.2f} GB are {:.2f} "
      "GB; {:.2f} GB of weights and {:.2f} GB of buffers leave {:.2f} GB for KV, where one "
      "sequence "
      "of max_model_len takes {:.2f} GB",
      utilization,
      gigabytes(total_bytes),
      gigabytes(budget),
      gigabytes(weights),
      gigabytes(buffers),
      gigabytes(left),
      gigabytes(per_block * static_cast<size_t>(least_blocks))));
}

}  // namespace outrider
