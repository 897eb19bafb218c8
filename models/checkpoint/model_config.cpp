// What differs between layers, and generation_config.json; see model_config.h.
#include "models/checkpoint/model_config.h"

#include "models/checkpoint/config_fields.h"

namespace outrider {

int32_t ModelConfig::kv_layer_of(int32_t layer) const {
  if (layer < n_kv_layers()) return layer;
  int32_t last = n_kv_layers() - 1;
  while (last > 0 && window_of(last) != window_of(layer)) --last;
  return last;
}

ModelConfig ModelConfig::of_layer(int32_t layer) const {
  ModelConfig own = *this;
  own.head_dim = head_dim_of(layer);
  own.n_kv_heads = n_kv_heads_of(layer);
  own.ffn_dim = ffn_dim_of(layer);
  own.full_head_dim = own.full_kv_heads = 0;
  own.double_wide_mlp = false;
  if (k_is_v(layer)) own.names.v = "";
  if (layer >= n_kv_layers()) own.names.k = own.names.v = own.names.k_norm = "";
  return own;
}

GenerationDefaults load_generation_defaults(const std::filesystem::path& model_dir) {
  GenerationDefaults defaults;
  const auto document = ConfigFields::read(model_dir, "generation_config.json");
  if (!document) return defaults;
  const ConfigFields& fields = *document;
  const auto number = [&fields](const char* key, double low, double high, float otherwise) {
    return static_cast<float>(fields.number_or(key, low, high, otherwise));
  };
  defaults.temperature = number("temperature", 0.0, 100.0, defaults.temperature);
  defaults.top_p = number("top_p", 0.0, 1.0, defaults.top_p);
  defaults.top_k = fields.integer_or("top_k", {0, 2'000'000}, defaults.top_k);
  defaults.min_p = number("min_p", 0.0, 1.0, defaults.min_p);
  defaults.repetition_penalty =
      number("repetition_penalty", 0.01, 100.0, defaults.repetition_penalty);
  return defaults;
}

}  // namespace outrider
