// How Hugging Face checkpoints name their tensors: llama's names, and in WeightNames those of
// another family (models/families).
#pragma once

#include <string>

namespace outrider {

// Without ".weight" and ".bias". Empty: the family has no such tensor.
struct WeightNames {
  std::string embedding = "model.embed_tokens";
  std::string positions = {};  // learned ones
  std::string layers = "model.layers.";
  std::string final_norm = "model.norm";
  std::string head = "lm_head";
  // Of a layer.
  std::string attn_norm = "input_layernorm";
  std::string q = "self_attn.q_proj";
  std::string k = "self_attn.k_proj";
  std::string v = "self_attn.v_proj";
  std::string qkv = {};  // in place of the three
  std::string q_norm = "self_attn.q_norm";
  std::string k_norm = "self_attn.k_norm";
  std::string sinks = {};  // the whole name: a score of each head that joins the softmax
  std::string o = "self_attn.o_proj";
  // Of latent attention; without q_rank q stands in the place of q_a and q_b.
  std::string q_a = "self_attn.q_a_proj";
  std::string q_a_norm = "self_attn.q_a_layernorm";
  std::string q_b = "self_attn.q_b_proj";
  std::string kv_a = "self_attn.kv_a_proj_with_mqa";
  std::string kv_a_norm = "self_attn.kv_a_layernorm";
  std::string kv_b = "self_attn.kv_b_proj";
  std::string attn_post_norm = {};  // of what attention adds
  std::string mlp_norm = "post_attention_layernorm";
  std::string gate = "mlp.gate_proj";
  std::string up = "mlp.up_proj";
  std::string gate_up = {};  // in place of the two: gate's rows, then up's
  std::string down = "mlp.down_proj";
  std::string mlp_post_norm = {};
  // Of a layer with experts: expert e is EXPERTS.e.GATE and so on, or all of them lie in two
  // tensors, [experts, outputs, inputs].
  std::string router = "mlp.gate";
  std::string router_correction = "mlp.gate.e_score_correction_bias";  // the whole name
  std::string experts = "mlp.experts";
  std::string expert_gate = "gate_proj";
  std::string expert_up = "up_proj";
  std::string expert_down = "down_proj";
  std::string experts_gate_up = {};  // in place of all experts' gate and up
  std::string experts_down = {};     // and of all experts' down
  // Those two as [experts, inputs, outputs], without ".weight"; their biases end in "_bias".
  bool experts_transposed = false;
  // Of experts beside an MLP; the first two are whole names.
  std::string router_scale = "router.scale";
  std::string expert_scale = "router.per_expert_scale";
  std::string experts_norm = "pre_feedforward_layernorm_2";
  std::string experts_post_norm = "post_feedforward_layernorm_2";
  std::string dense_post_norm = "post_feedforward_layernorm_1";
  std::string shared_expert = "mlp.shared_expert";
  std::string shared_gate = "mlp.shared_expert_gate";

  // Of per-layer inputs: of the model, then of a layer.
  std::string per_layer_embedding = "model.embed_tokens_per_layer";
  std::string per_layer_model_projection = "model.per_layer_model_projection";
  std::string per_layer_model_norm = "model.per_layer_projection_norm";
  std::string per_layer_gate = "per_layer_input_gate";
  std::string per_layer_projection = "per_layer_projection";
  std::string per_layer_norm = "post_per_layer_input_norm";
  std::string layer_scalar = "layer_scalar";  // the whole name

  bool has_positions() const { return !positions.empty(); }
};

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

// Weights of layer l. A projection's bias, where the config has one, replaces ".weight" by ".bias".
struct LayerNames {
  explicit LayerNames(int layer, WeightNames of_family = {})
      : family(std::move(of_family)), prefix(family.layers + std::to_string(layer) + ".") {}
  WeightNames family;
  std::string prefix;

  std::string q() const { return prefix + family.q; }
  std::string k() const { return prefix + family.k; }
  std::string v() const { return prefix + family.v; }
  std::string qkv() const { return prefix + family.qkv; }
  std::string o() const { return prefix + family.o; }
  std::string q_norm() const { return prefix + family.q_norm + ".weight"; }
  std::string k_norm() const { return prefix + family.k_norm + ".weight"; }
  std::string gate() const { return prefix + family.gate; }
  std::string up() const { return prefix + family.up; }
  std::string gate_up() const { return prefix + family.gate_up; }
  std::string down() const { return prefix + family.down; }
  std::string expert(int64_t e, const std::string& part) const {
    return prefix + family.experts + "." + std::to_string(e) + "." + part;
  }
  std::string shared(const std::string& part) const {
    return prefix + family.shared_expert + "." + part;
  }
};

}  // namespace outrider
