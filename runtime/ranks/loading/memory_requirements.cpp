// See memory_requirements.h.
#include "runtime/ranks/loading/memory_requirements.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/device/device_sums.h"
#include "runtime/ranks/loading/gpu_loader.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

GpuOptions gpu_options(const RunConfig& config,
                       const EngineSizes& sizes,
                       const ModelConfig& model,
                       GpuWeightFormat format,
                       gpu::Priority priority) {
  return {.max_positions = sizes.blocks_per_sequence * config.block_size,
          .kv_type = gpu_kv_type(model, format),
          .priority = priority,
          .enforce_eager = config.enforce_eager};
}

}  // namespace

size_t most_summed_at_once(const ModelOptions& options, const ModelConfig& config) {
  constexpr int32_t kMostRows = 128;
  return static_cast<size_t>(std::min(options.max_rows, kMostRows)) *
         static_cast<size_t>(config.hidden_dim);
}

bool is_draft_on_gpu(const RunConfig& config) {
  const std::string& own = config.speculative.device;
  return (own == "auto" ? config.device : own) == "cuda";
}

MemoryRequirement target_requirement(const RunConfig& config,
                                     const EngineSizes& sizes,
                                     const RankLayout& layout) {
  const ModelConfig model = model_config_of(config, Role::kTarget);
  const GpuWeightFormat format = gpu_weight_format(config, config.quantization);
  const ModelOptions options = target_options(config, sizes, model);
  check_gpu_kv_type(config.kv_cache_dtype, gpu_kv_type(model, format));
  return {.config = model,
          .shard = shard_model(model, 0, layout.num_targets, numerics_from_name(config.numerics)),
          .format = format,
          .options = options,
          .gpu = gpu_options(config, sizes, model, format, gpu::Priority::kNormal),
          .sums_bytes = device_sums_bytes(device_sums_from_name(config.device_sums),
                                          layout.num_targets,
                                          most_summed_at_once(options, model))};
}

MemoryRequirement draft_requirement(const RunConfig& config, const EngineSizes& sizes) {
  const ModelConfig model = model_config_of(config, Role::kDraft);
  const GpuWeightFormat format = gpu_weight_format(config, config.speculative.quantization);
  return {.config = model,
          .shard = shard_model(model, 0, 1),
          .format = format,
          .options = draft_options(config, sizes, model),
          .gpu = gpu_options(config, sizes, model, format, gpu::Priority::kHigh)};
}

int32_t gpu_blocks(const RunConfig& config,
                   const EngineSizes& sizes,
                   const RankLayout& layout,
                   const DeviceAssignment& assignment) {
  std::vector<MemoryRequirement> requirements;
  if (config.device == "cuda" && assignment.num_targets > 0) {
    requirements.push_back(target_requirement(config, sizes, layout));
    requirements.back().num_copies = assignment.num_targets;
  }
  if (assignment.has_draft) requirements.push_back(draft_requirement(config, sizes));
  const int32_t most = shared_num_blocks(requirements,
                                         config.gpu_memory_utilization,
                                         assignment.device->info().total_bytes,
                                         sizes.blocks_per_sequence);
  if (config.kv_cache_memory_bytes == 0) return most;
  const MemoryRequirement& first = requirements.front();
  const int64_t allowed = config.kv_cache_memory_bytes /
                          static_cast<int64_t>(gpu_kv_bytes_per_block(
                              first.config, first.shard, config.block_size, first.gpu.kv_type));
  sizes.expect_one_sequence(allowed, config.kv_cache_memory_bytes, config.block_size);
  return static_cast<int32_t>(std::min<int64_t>(most, allowed));
}

}  // namespace outrider
