// See shared.h.
#include "models/families/shared.h"

#include <algorithm>
#include <cmath>

#include "runtime/ops/half.h"

namespace outrider {

float embedding_scale_of(const ModelConfig& config, int32_t length) {
  const float root = std::sqrt(static_cast<float>(length));
  if (config.dtype == ops::DType::kBF16) return ops::bf16_to_float(ops::float_to_bf16(root));
  if (config.dtype == ops::DType::kF16) return ops::f16_to_float(ops::float_to_f16(root));
  return root;
}

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
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  config.qk_norm = true;
  config.qk_norm_span = QkNormSpan::kAllHeads;
  config.names.attn_norm = "";
  config.names.attn_post_norm = "post_attention_layernorm";
  config.names.mlp_norm = "";
  config.names.mlp_post_norm = "post_feedforward_layernorm";
}

void read_gemma(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys) {
  read_decoder(fields, config, keys);
  config.embedding_scale = embedding_scale_of(config, config.hidden_dim);
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  config.names.attn_post_norm = "post_attention_layernorm";
  config.names.mlp_norm = "pre_feedforward_layernorm";
  config.names.mlp_post_norm = "post_feedforward_layernorm";
  fields.know({"hidden_act"});  // hidden_activation is what counts
}

void read_gemma_2_or_3(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys) {
  read_gemma(fields, config, keys);
  config.norm_plus_one = true;
  const double scalar = fields.number_or("query_pre_attn_scalar", 1e-3, 1e6, 256.0);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  refuse_unless(fields, "use_bidirectional_attention", false);
}

void read_granite(const ConfigFields& fields, ModelConfig& config) {
  read_decoder(fields, config);
  read_rope(fields, config);
  config.attention_bias = config.attention_out_bias = fields.flag_or("attention_bias", false);
  const auto factor = [&fields](const char* key) {
    return static_cast<float>(fields.number_or(key, 1e-6, 1e6, 1.0));
  };
  config.embedding_scale = factor("embedding_multiplier");
  config.residual_scale = factor("residual_multiplier");
  config.attention_scale = factor("attention_multiplier");
  config.logit_scale = 1.0f / factor("logits_scaling");
}

void read_qwen_experts(const ConfigFields& fields, ModelConfig& config, const ExpertKeys& keys) {
  read_experts(fields, config, keys);
  config.experts.normalised = fields.flag_or("norm_topk_prob", false);
  const int32_t step = fields.integer_or("decoder_sparse_step", {1, 1'000'000}, 1);
  const auto listed = fields.numbers("mlp_only_layers").value_or(std::vector<double>{});
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const bool is_listed = std::find(listed.begin(), listed.end(), layer) != listed.end();
    config.experts.dense_layers.push_back(is_listed || (layer + 1) % step != 0);
  }
}

void read_mixtral_experts(const ConfigFields& fields,
                          ModelConfig& config,
                          int32_t default_count,
                          int32_t default_per_row) {
  read_experts(fields,
               config,
               {.count = "num_local_experts",
                .ffn = "intermediate_size",
                .default_count = default_count,
                .default_per_row = default_per_row});
  config.experts.normalised = true;
  config.names.router = "block_sparse_moe.gate";
  config.names.router_correction = "block_sparse_moe.e_score_correction_bias";
  config.names.experts = "block_sparse_moe.experts";
  config.names.expert_gate = "w1";
  config.names.expert_up = "w3";
  config.names.expert_down = "w2";
}

void read_sigmoid_router(const ConfigFields& fields,
                         ModelConfig& config,
                         const RouterDefaults& defaults,
                         int32_t default_dense) {
  read_router(fields, config, defaults);
  config.experts.sigmoid = true;
  config.experts.correction = true;
  const int32_t num_shared = fields.integer_or("n_shared_experts", {0, 64}, 1);
  config.experts.shared_ffn_dim = num_shared * config.experts.ffn_dim;
  config.names.shared_expert = "mlp.shared_experts";
  const int32_t num_dense =
      fields.integer_or("first_k_dense_replace", {0, 1'000'000}, default_dense);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    config.experts.dense_layers.push_back(layer < num_dense);
  }
  fields.know({"num_nextn_predict_layers", "num_mtp_layers"});  // layers that are not loaded
}

}  // namespace outrider
