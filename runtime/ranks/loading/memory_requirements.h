// What target and draft will take of a GPU, and how many KV blocks that leaves them.
#pragma once

#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/loading/device_assignment.h"
#include "runtime/ranks/loading/engine_sizes.h"
#include "runtime/ranks/loading/gpu_memory.h"

namespace outrider {

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
