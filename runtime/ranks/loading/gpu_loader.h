// A model on a GPU, from options: its types, and the weights' way there. Used by model_loader.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "models/gpu/transformer.h"
#include "models/synthetic/synthetic.h"
#include "models/weights/weights.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

// Of a model's weights on a GPU, by its options; throws Error for what only CPUs do.
GpuWeightFormat gpu_weight_format(const RunConfig& config, const std::string& quantization);
// Of keys and values.
gpu::Type gpu_kv_type(const ModelConfig& config, GpuWeightFormat format);
// Throws Error when the option asks for another.
void check_gpu_kv_type(const std::string& kv_cache_dtype, gpu::Type type);

struct GpuModelSource {
  ModelConfig config;
  ModelShard shard;
  GpuWeightFormat format = GpuWeightFormat::kAuto;
  ModelOptions options;
  GpuOptions gpu;
  std::optional<SyntheticRecipe> recipe;  // of weights that are drawn on the device
  std::function<std::unique_ptr<Weights>()> read_weights;  // else
};
// With everything but its group: it is to join() one before its first step.
std::unique_ptr<GpuTransformer> load_gpu_model(gpu::Device& device,
                                               const gpu::OpTable& ops,
                                               const GpuModelSource& source);

}  // namespace outrider
