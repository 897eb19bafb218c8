// See checkpoint_plan.h.
#include "models/checkpoint/checkpoint_plan.h"

#include "models/checkpoint/weight_names.h"

namespace outrider {
namespace {

class Plan {
 public:
  explicit Plan(const ModelConfig& config) : config_(config) {}

  void vector(const std::string& name, int64_t n) { tensors_.push_back({name, {n}}); }
  void projection(const std::string& name, int64_t n_out, int64_t n_in, bool has_bias) {
    tensors_.push_back({name + ".weight", {n_out, n_in}});
    if (has_bias) vector(name + ".bias", n_out);
  }

  void layer(const LayerNames& names) {
    const int64_t hidden = config_.hidden_dim;
    const int64_t q_rows = int64_t{config_.n_heads} * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.n_kv_heads} * config_.head_dim;
    vector(names.attn_norm(), hidden);
    projection(names.q(), q_rows, hidden, config_.attention_bias);
    projection(names.k(), kv_rows, hidden, config_.attention_bias);
    projection(names.v(), kv_rows, hidden, config_.attention_bias);
    if (config_.qk_norm) vector(names.q_norm(), config_.head_dim);
    if (config_.qk_norm) vector(names.k_norm(), config_.head_dim);
    projection(names.o(), hidden, q_rows, config_.attention_out_bias);
    vector(names.mlp_norm(), hidden);
    projection(names.gate(), config_.ffn_dim, hidden, config_.mlp_bias);
    projection(names.up(), config_.ffn_dim, hidden, config_.mlp_bias);
    projection(names.down(), hidden, config_.ffn_dim, config_.mlp_bias);
  }

  std::vector<TensorShape> whole() {
    tensors_.push_back({kEmbeddingName, {config_.vocab_size, config_.hidden_dim}});
    for (int32_t l = 0; l < config_.n_layers; ++l) layer(LayerNames(l));
    vector(kFinalNormName, config_.hidden_dim);
    if (!config_.tied_head)
      tensors_.push_back({kHeadName, {config_.vocab_size, config_.hidden_dim}});
    return std::move(tensors_);
  }

 private:
  const ModelConfig& config_;
  std::vector<TensorShape> tensors_;
};

}  // namespace

std::vector<TensorShape> checkpoint_tensors(const ModelConfig& config) {
  return Plan(config).whole();
}

}  // namespace outrider
