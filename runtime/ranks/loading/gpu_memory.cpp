// See gpu_memory.h.
#include "runtime/ranks/loading/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/device/device_sums.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

double gigabytes(size_t num_bytes) { return static_cast<double>(num_bytes) / 1e9; }

// Of the model's weights, by its options; throws Error for what only CPUs do.
GpuWeightFormat gpu_weight_format(const RunConfig& config, const std::string& quantization) {
  if (quantization == "int8") {
    throw Error("quantization int8 is for device cpu; on GPUs there is fp8");
  }
  if (config.activation_dtype == "float32") {
    if (quantization == "fp8") throw Error("quantization fp8 does not go with float32 activations");
    return GpuWeightFormat::kF32;
  }
  return quantization == "fp8" ? GpuWeightFormat::kFp8 : GpuWeightFormat::kAuto;
}

gpu::Type gpu_kv_type(const ModelConfig& config, GpuWeightFormat format) {
  return activation_type(matrix_type(gpu_type(config.dtype), format));
}

void check_gpu_kv_type(const std::string& kv_cache_dtype, gpu::Type type) {
  const char* const has = type == gpu::Type::kF32    ? "float32"
                          : type == gpu::Type::kBF16 ? "bfloat16"
                                                     : "float16";
  if (kv_cache_dtype == "auto" || kv_cache_dtype == has) return;
  throw Error(
      fmt::format("kv_cache_dtype {} is for device cpu: on GPUs keys and values are of the "
                  "activations' type, which is {} here",
                  kv_cache_dtype,
                  has));
}

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
