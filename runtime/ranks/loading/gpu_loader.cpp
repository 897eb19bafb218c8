// See gpu_loader.h.
#include "runtime/ranks/loading/gpu_loader.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/error.h"

namespace outrider {

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

std::unique_ptr<GpuTransformer> load_gpu_model(gpu::Device& device,
                                               const gpu::OpTable& ops,
                                               const GpuModelSource& source) {
  std::shared_ptr<const GpuWeights> weights =
      source.recipe
          ? random_gpu_weights(
                device, ops, source.config, source.shard, *source.recipe, source.format)
          : upload_weights(
                device, source.config, source.shard, source.read_weights(), source.format);
  return std::make_unique<GpuTransformer>(
      source.config, std::move(weights), source.shard, source.options, source.gpu, device, ops);
}

}  // namespace outrider
