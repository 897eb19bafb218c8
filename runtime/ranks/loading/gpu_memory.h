// How the memory of a GPU is shared by the models that lie on it. Pure arithmetic over options and
// shapes, so that every rank finds the same numbers before anything is loaded.
#pragma once

#include <cstdint>
#include <span>

#include "models/forward/model.h"
#include "models/gpu/buffers.h"
#include "models/gpu/weights.h"

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
// of utilization * total_bytes. Throws Error with the sum when that is fewer than least_blocks.
int32_t shared_num_blocks(std::span<const MemoryRequirement> requirements,
                          double utilization,
                          size_t total_bytes,
                          int32_t least_blocks);

}  // namespace outrider
