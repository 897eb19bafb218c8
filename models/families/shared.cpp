// See shared.h.
#include "models/families/shared.h"

#include <algorithm>
#include <cmath>

#include "runtime/ops/half.h"

namespace outrider {
namespace {

// As the models multiply: by the root rounded to the type of the weights.
float embedding_scale_of(const ModelConfig& config) {
  const float root = std::sqrt(static_cast<float>(config.hidden_dim));
  if (config.dtype == ops::DType::kBF16) return ops::bf16_to_float(ops::float_to_bf16(root));
  if (config.dtype == ops::DType::kF16) return ops::f16_to_float(ops::float_to_f16(root));
  return root;
}

}  // namespace

void read_qwen_windows(const ConfigFields& fields, ModelConfig& config) {
  fields.know({"sliding_window", "max_window_layers", "layer_types"});
  if (!fields.flag_or("use_sliding_window", false)) return;
  const auto windowed = windowed_layers(fields, config);
  const int32_t first = fields.integer_or("max_window_layers", {0, 1'000'000}, 28);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    config.full_layers.push_back(windowed ? !(*windowed)[static_cast<size_t>(layer)]
                                          : layer < first);
  }
  const auto& full = config.full_layers;
  if (std::find(full.begin(), full.end(), false) == full.end()) return;
  config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, 4096);
}

void set_olmo(const ConfigFields& fields, ModelConfig& config) {
  config.attention_bias = fields.flag_or("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.qk_norm = true;
  config.qk_norm_span = QkNormSpan::kAllHeads;
  config.names.attn_norm = "";
  config.names.attn_post_norm = "post_attention_layernorm";
  config.names.mlp_norm = "";
  config.names.mlp_post_norm = "post_feedforward_layernorm";
}

void read_gemma(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys) {
  read_decoder(fields, config, keys);
  config.embedding_scale = embedding_scale_of(config);
  config.norm_plus_one = true;
  config.attention_bias = fields.flag_or("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  const double scalar = fields.number_or("query_pre_attn_scalar", 1e-3, 1e6, 256.0);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  config.names.attn_post_norm = "post_attention_layernorm";
  config.names.mlp_norm = "pre_feedforward_layernorm";
  config.names.mlp_post_norm = "post_feedforward_layernorm";
  refuse_unless(fields, "use_bidirectional_attention", false);
  fields.know({"hidden_act"});  // hidden_activation is what counts
}

}  // namespace outrider
