// See cpu_dtypes.h.
#include "runtime/ranks/loading/cpu_dtypes.h"

namespace outrider {

ops::Activations activations_of(const RunConfig& config, const ModelConfig& model) {
  // Smaller models are quick anyway; they keep the more exact product.
  constexpr int32_t kLeastRoundedDim = 512;
  if (config.activation_dtype == "float32") return ops::Activations::kF32;
  if (config.activation_dtype == "bfloat16") return ops::Activations::kBF16;
  const bool fast = ops::has_bf16_dot() && ops::isa_from_name(config.isa) == ops::Isa::kAvx512;
  return fast && model.hidden_dim >= kLeastRoundedDim ? ops::Activations::kBF16
                                                      : ops::Activations::kF32;
}

ops::KvType kv_type_of(const RunConfig& config, const ModelConfig& model) {
  if (config.kv_cache_dtype != "auto") return ops::kv_type_from_name(config.kv_cache_dtype);
  // Products with f16 and f32 weights round nothing.
  const bool has_rounded_products = model.dtype == ops::DType::kBF16 || model.is_quantized();
  return has_rounded_products && activations_of(config, model) == ops::Activations::kBF16
             ? ops::KvType::kBF16
             : ops::KvType::kF32;
}

}  // namespace outrider
