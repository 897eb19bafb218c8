// The only place that knows how Hugging Face checkpoints name their tensors.
#pragma once

#include <string>

namespace outrider {

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

// Weights of layer l. A projection's bias, where the config has one, replaces ".weight" by ".bias".
struct LayerNames {
  explicit LayerNames(int layer) : prefix("model.layers." + std::to_string(layer) + ".") {}
  std::string prefix;

  std::string attn_norm() const { return prefix + "input_layernorm.weight"; }
  std::string q() const { return prefix + "self_attn.q_proj"; }
  std::string k() const { return prefix + "self_attn.k_proj"; }
  std::string v() const { return prefix + "self_attn.v_proj"; }
  std::string o() const { return prefix + "self_attn.o_proj"; }
  std::string q_norm() const { return prefix + "self_attn.q_norm.weight"; }
  std::string k_norm() const { return prefix + "self_attn.k_norm.weight"; }
  std::string mlp_norm() const { return prefix + "post_attention_layernorm.weight"; }
  std::string gate() const { return prefix + "mlp.gate_proj"; }
  std::string up() const { return prefix + "mlp.up_proj"; }
  std::string down() const { return prefix + "mlp.down_proj"; }
};

}  // namespace outrider
