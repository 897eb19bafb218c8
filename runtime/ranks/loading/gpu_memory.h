// What target and draft will take of a GPU's memory, and how many KV blocks that leaves them,
// before anything is loaded.
#pragma once

#include <cstdint>
#include <span>

#include "models/forward/model.h"
#include "models/gpu/buffers.h"
#include "models/gpu/weights.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/loading/device_assignment.h"
#include "runtime/ranks/loading/engine_sizes.h"

namespace outrider {

// What a model will take.
struct MemoryRequirement {
  ModelConfig config;
  ModelShard shard;
  GpuWeightFormat format = GpuWeightFormat::kAuto;
  ModelOptions options;  // num_blocks is not looked at
  GpuOptions gpu;
  size_t sums_bytes = 0;  // of what sums over the ranks want
  int num_copies = 1;     // ranks on this GPU that take as much
};

// KV blocks that each of the models gets, the same number for all: what weights and buffers leave
// of utilization * total_bytes. Every rank finds the same. Throws Error with the sum when that is
// fewer than least_blocks.
int32_t shared_num_blocks(std::span<const MemoryRequirement> requirements,
                          double utilization,
                          size_t total_bytes,
                          int32_t least_blocks);

bool is_draft_on_gpu(const RunConfig& config);

MemoryRequirement target_requirement(const RunConfig& config,
                                     const EngineSizes& sizes,
                                     const RankLayout& layout);
MemoryRequirement draft_requirement(const RunConfig& config, const EngineSizes& sizes);

// Floats of a sum over the target ranks that goes in one piece: of a step of all decoding rows;
// longer ones, of prompts, go in pieces, so that the exchange's buffers stay small.
size_t most_summed_at_once(const ModelOptions& options, const ModelConfig& config);

// KV blocks of everyone on the GPU of `assignment`: of the target only what it was allowed. Throws
// Error when that is fewer than one sequence needs.
int32_t gpu_blocks(const RunConfig& config,
                   const EngineSizes& sizes,
                   const RankLayout& layout,
                   const DeviceAssignment& assignment);

}  // namespace outrider
