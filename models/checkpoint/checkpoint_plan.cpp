// See checkpoint_plan.h.
#include "models/checkpoint/checkpoint_plan.h"

#include "models/checkpoint/weight_names.h"

namespace outrider {
namespace {

class Plan {
 public:
  explicit Plan(const ModelConfig& config) : config_(config) {}

  void vector(const std::string& name, int64_t n) { tensors_.push_back({name, {n}}); }
  void norm(const std::string& prefix, const std::string& name) {
    if (name.empty()) return;
    vector(prefix + name + ".weight", config_.hidden_dim);
    if (config_.norm_bias) vector(prefix + name + ".bias", config_.hidden_dim);
  }
  void projection(const std::string& name, int64_t n_out, int64_t n_in, bool has_bias) {
    tensors_.push_back({name + ".weight", {n_out, n_in}});
    if (has_bias) vector(name + ".bias", n_out);
  }

  void head_norm(const LayerNames& names, const std::string& name, int64_t n_heads) {
    switch (config_.qk_norm_span) {
      case QkNormSpan::kHead:
        return vector(names.prefix + name + ".weight", config_.head_dim);
      case QkNormSpan::kAllHeads:
        return vector(names.prefix + name + ".weight", n_heads * config_.head_dim);
      case QkNormSpan::kOwnHead:
        for (int64_t h = 0; h < n_heads; ++h) {
          vector(names.prefix + name + "." + std::to_string(h) + ".weight", config_.head_dim);
        }
    }
  }

  void latent_attention(const LayerNames& names) {
    const LatentConfig& latent = config_.latent;
    const WeightNames& family = config_.names;
    const int64_t hidden = config_.hidden_dim;
    const int64_t heads = config_.n_heads;
    const bool has_bias = config_.attention_bias;
    if (latent.q_rank == 0) {
      projection(names.q(), heads * latent.query_dim(), hidden, has_bias);
    } else {
      projection(names.prefix + family.q_a, latent.q_rank, hidden, has_bias);
      vector(names.prefix + family.q_a_norm + ".weight", latent.q_rank);
      projection(names.prefix + family.q_b, heads * latent.query_dim(), latent.q_rank, false);
    }
    projection(names.prefix + family.kv_a, latent.kv_rank + latent.rope_dim, hidden, has_bias);
    vector(names.prefix + family.kv_a_norm + ".weight", latent.kv_rank);
    projection(names.prefix + family.kv_b,
               heads * (latent.nope_dim + latent.value_dim),
               latent.kv_rank,
               false);
    projection(names.o(), hidden, heads * latent.value_dim, config_.attention_out_bias);
  }

  void attention(const LayerNames& names) {
    if (config_.is_latent()) return latent_attention(names);
    const int64_t hidden = config_.hidden_dim;
    const int64_t q_rows = int64_t{config_.n_heads} * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.n_kv_heads} * config_.head_dim;
    if (config_.qkv_layout != QkvLayout::kSeparate) {
      projection(names.qkv(), q_rows + 2 * kv_rows, hidden, config_.attention_bias);
    } else {
      projection(names.q(), q_rows, hidden, config_.attention_bias);
      const WeightNames& own = config_.names;
      if (!own.k.empty()) projection(names.k(), kv_rows, hidden, config_.attention_bias);
      if (!own.v.empty()) projection(names.v(), kv_rows, hidden, config_.attention_bias);
    }
    if (config_.qk_norm) head_norm(names, config_.names.q_norm, config_.n_heads);
    if (config_.qk_norm && !config_.names.k_norm.empty()) {
      head_norm(names, config_.names.k_norm, config_.n_kv_heads);
    }
    if (!config_.names.sinks.empty()) vector(names.prefix + config_.names.sinks, config_.n_heads);
    projection(names.o(), hidden, q_rows, config_.attention_out_bias);
  }

  void mlp(const LayerNames& names) {
    const int64_t hidden = config_.hidden_dim;
    if (config_.gated_mlp && !config_.names.gate_up.empty()) {
      projection(names.gate_up(), int64_t{2} * config_.ffn_dim, hidden, config_.mlp_bias);
    } else {
      if (config_.gated_mlp) projection(names.gate(), config_.ffn_dim, hidden, config_.mlp_bias);
      projection(names.up(), config_.ffn_dim, hidden, config_.mlp_bias);
    }
    projection(names.down(), hidden, config_.ffn_dim, config_.mlp_bias);
  }

  void experts(const LayerNames& names) {
    const ExpertsConfig& experts = config_.experts;
    const WeightNames& family = config_.names;
    const int64_t hidden = config_.hidden_dim;
    projection(names.prefix + family.router, experts.count, hidden, experts.biases);
    if (experts.beside_mlp) {
      vector(names.prefix + family.router_scale, hidden);
      vector(names.prefix + family.expert_scale, experts.count);
      norm(names.prefix, family.experts_norm);
      norm(names.prefix, family.experts_post_norm);
      norm(names.prefix, family.dense_post_norm);
    }
    if (experts.correction) vector(names.prefix + family.router_correction, experts.count);
    if (!family.experts_gate_up.empty()) {
      tensors_.push_back({names.prefix + family.experts_gate_up + ".weight",
                          {experts.count, 2 * experts.ffn_dim, hidden}});
      tensors_.push_back({names.prefix + family.experts_down + ".weight",
                          {experts.count, hidden, experts.ffn_dim}});
      if (experts.biases) {
        tensors_.push_back({names.prefix + family.experts_gate_up + "_bias",
                            {experts.count, 2 * experts.ffn_dim}});
        tensors_.push_back({names.prefix + family.experts_down + "_bias", {experts.count, hidden}});
      }
    }
    for (int32_t e = 0; e < experts.count && family.experts_gate_up.empty(); ++e) {
      projection(names.expert(e, family.expert_gate), experts.ffn_dim, hidden, false);
      projection(names.expert(e, family.expert_up), experts.ffn_dim, hidden, false);
      projection(names.expert(e, family.expert_down), hidden, experts.ffn_dim, false);
    }
    if (experts.shared_ffn_dim == 0) return;
    projection(names.shared("gate_proj"), experts.shared_ffn_dim, hidden, false);
    projection(names.shared("up_proj"), experts.shared_ffn_dim, hidden, false);
    projection(names.shared("down_proj"), hidden, experts.shared_ffn_dim, false);
    if (experts.shared_gate) projection(names.prefix + family.shared_gate, 1, hidden, false);
  }

  void layer(int32_t l) {
    const LayerNames names(l, config_.names);
    norm(names.prefix, config_.names.attn_norm);
    attention(names);
    norm(names.prefix, config_.names.attn_post_norm);
    norm(names.prefix, config_.names.mlp_norm);
    if (config_.has_experts(l)) experts(names);
    if (!config_.has_experts(l) || config_.experts.beside_mlp) mlp(names);
    norm(names.prefix, config_.names.mlp_post_norm);
    if (config_.per_layer_dim > 0) {
      const int64_t dim = config_.per_layer_dim;
      projection(names.prefix + config_.names.per_layer_gate, dim, config_.hidden_dim, false);
      projection(names.prefix + config_.names.per_layer_projection, config_.hidden_dim, dim, false);
      norm(names.prefix, config_.names.per_layer_norm);
    }
    if (config_.layer_scalar) vector(names.prefix + config_.names.layer_scalar, 1);
  }

  void per_layer_inputs() {
    const WeightNames& names = config_.names;
    const int64_t width = int64_t{config_.n_layers} * config_.per_layer_dim;
    tensors_.push_back({names.per_layer_embedding + ".weight", {config_.vocab_size, width}});
    projection(names.per_layer_model_projection, width, config_.hidden_dim, false);
    vector(names.per_layer_model_norm + ".weight", config_.per_layer_dim);
  }

  std::vector<TensorShape> whole() {
    const WeightNames names = config_.names;
    tensors_.push_back({names.embedding + ".weight", {config_.vocab_size, config_.hidden_dim}});
    if (names.has_positions()) {
      tensors_.push_back({names.positions + ".weight",
                          {config_.max_positions + config_.position_offset, config_.hidden_dim}});
    }
    if (config_.per_layer_dim > 0) per_layer_inputs();
    const ModelConfig all = config_;
    for (int32_t l = 0; l < all.n_layers; ++l) {
      config_ = all.of_layer(l);
      layer(l);
    }
    config_ = all;
    norm("", names.final_norm);
    if (!config_.tied_head)
      tensors_.push_back({names.head + ".weight", {config_.vocab_size, config_.hidden_dim}});
    return std::move(tensors_);
  }

 private:
  ModelConfig config_;  // in a layer's context of that layer
  std::vector<TensorShape> tensors_;
};

}  // namespace

std::vector<TensorShape> checkpoint_tensors(const ModelConfig& config) {
  return Plan(config).whole();
}

}  // namespace outrider
