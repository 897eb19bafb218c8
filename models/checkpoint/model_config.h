// A model's shape and switches. The families (models/families) read them from a Hugging Face
// config.json; the forward pass is made of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/quantization_config.h"
#include "models/checkpoint/weight_names.h"
#include "runtime/ops/tensor.h"

namespace outrider {

// kDynamic differs from kNone only beyond max_positions, where this runtime does not go: the
// stretch there depends on the sequence's length, so keys already cached would have to be rotated
// again.
enum class RopeScaling : uint8_t {
  kNone,
  kLinear,
  kDynamic,
  kLlama3,
  kYarn,
  kLongRope,
  kProportional
};

struct RopeConfig {
  double theta = 10000.0;
  int32_t rotary_dim = 0;    // <= head_dim, even
  bool interleaved = false;  // pairs are (0, 1), (2, 3), ..., not (0, rotary_dim / 2), ...
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  double attention_factor =
      1.0;                    // factor on cos and sin; yarn's is computed when the file has none
  bool yarn_truncate = true;  // yarn: round the ramp's ends to whole dimensions
  int32_t original_max_positions = 0;
  // longrope: a divisor of each pair's speed, up to the original length and beyond it
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  double turning_share = 1.0;  // proportional: of the pairs, the first ones; the others stand
};

enum class NormKind : uint8_t { kRms, kLayer };
// What a norm of queries and keys spans: each head with weights that all heads share or with its
// own (a layer norm), or all heads of the model together.
enum class QkNormSpan : uint8_t { kHead, kOwnHead, kAllHeads };
// How a checkpoint that has queries, keys and values in one matrix orders its rows: all queries,
// all keys, all values; or so for each KV head.
enum class QkvLayout : uint8_t { kSeparate, kFused, kGrouped };

// Layers whose MLP is a mixture of experts (Shazeer et al. 2017): per row some of them, chosen by a
// router, and perhaps one that every row goes to. How they are chosen: ops::ExpertChoice.
struct ExpertsConfig {
  int32_t count = 0;  // 0: no mixtures
  int32_t per_row = 0;
  int32_t ffn_dim = 0;         // of each expert
  int32_t shared_ffn_dim = 0;  // of the shared one; 0: none
  bool shared_gate = false;    // that one times a sigmoid of the router
  bool biases = false;         // on the router and on every expert
  // With a limit: rows of gate and up take turns, and ops::ClampedSwiglu is the activation.
  ops::ClampedSwiglu swiglu;
  // Softmax over the chosen alone is softmax over all, normalised.
  bool sigmoid = false;
  bool correction = false;
  int32_t groups = 1;
  int32_t chosen_groups = 1;
  bool normalised = false;
  float scale = 1.0f;
  // Beside the MLP of ffn_dim units, not in its place: each has norms of its own, as has the
  // router, and the weights of the chosen have a factor by expert (Gemma 4).
  bool beside_mlp = false;
  std::vector<bool> dense_layers;  // with the MLP of ffn_dim units instead; empty: none
};

// Multi-head latent attention (MLA, DeepSeek-V2 2405.04434): keys and values of all heads are made
// of one latent vector a position, which alone is kept, beside one key that turns with the
// position. The products that would make them go to the queries and to what attention gives
// instead, so attention has one KV head: head_dim is rope_dim + kv_rank, and values are the keys'
// last kv_rank.
struct LatentConfig {
  int32_t kv_rank = 0;    // 0: ordinary attention
  int32_t q_rank = 0;     // 0: queries come straight from the hidden state
  int32_t nope_dim = 0;   // of a query head, what does not turn
  int32_t rope_dim = 0;   // and what does
  int32_t value_dim = 0;  // of a head, for o
  int32_t query_dim() const { return nope_dim + rope_dim; }
};

struct ModelConfig {
  std::string model_type;  // of the table in models/families/families.cpp
  WeightNames names;       // a norm without a name is not there
  int32_t n_layers = 0;
  int32_t hidden_dim = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  LatentConfig latent;  // where it is set, n_kv_heads and head_dim are those of the latent
  int32_t ffn_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_positions = 0;
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  bool norm_bias = false;
  bool norm_plus_one = false;   // norms multiply by 1 + weight
  bool attention_bias = false;  // on q, k, v
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool gated_mlp = true;  // down(act(gate x) * up x), else down(act(up x))
  ExpertsConfig experts;
  ops::ActivationKind activation = ops::ActivationKind::kSilu;
  bool parallel_mlp = false;  // x + attention(norm x) + mlp(norm x); without mlp_norm the same norm
  bool qk_norm = false;       // on q and k, before rope
  QkNormSpan qk_norm_span = QkNormSpan::kHead;
  bool v_norm = false;  // on each head of v, without weights
  bool tied_head = false;
  QkvLayout qkv_layout = QkvLayout::kSeparate;
  bool transposed = false;       // layers' matrices lie as [inputs, outputs] in the file
  float embedding_scale = 1.0f;  // factors on the embedding, on what is added to the residual
  float residual_scale = 1.0f;   // stream, and on the logits
  float logit_scale = 1.0f;
  // A vector of its own that each token gives each layer (Gemma 3n's per-layer inputs); 0: none.
  int32_t per_layer_dim = 0;
  float per_layer_scale = 1.0f;    // a factor on that
  bool layer_scalar = false;       // a factor on the residual stream at the end of each layer
  float logit_softcap = 0.0f;      // c tanh(x / c); 0: none
  float attention_scale = 0.0f;    // of scores; 0: 1 / sqrt(head_dim)
  float attention_softcap = 0.0f;  // of scores
  bool alibi = false;              // scores fall with the distance, by a slope of the head
  int32_t position_offset = 0;     // of position 0 in the table of learned positions
  // Queries times 1 + beta ln(1 + floor(position / rope.original_max_positions)).
  float query_growth = 0.0f;
  int32_t sliding_window = 0;        // 0 = none
  std::vector<bool> full_layers;     // layers without the window; empty: none
  std::vector<bool> no_rope_layers;  // empty: none
  // Layers without the window may have heads of their own, and no projection of values, which are
  // then that of keys. 0: as the others.
  int32_t full_head_dim = 0;
  int32_t full_kv_heads = 0;
  bool full_k_is_v = false;
  // The last so many layers have no keys and values: they read the pages of the last layer of their
  // kind that has (Brandon et al. 2405.12981). Their MLP may be twice as wide.
  int32_t kv_shared_layers = 0;
  bool double_wide_mlp = false;
  int32_t undecided_window = 0;  // 0, or no longer context is served: llama with sliding_window
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of windowed layers, where it is another
  int32_t served_positions = 0;          // longest context served; 0: max_positions
  ops::DType dtype = ops::DType::kBF16;  // what the file says; weights keep the file's own type
  QuantizationConfig quantization;       // how the file keeps projections, when in integers
  // What float projections are rounded to as they are loaded; bits 0: to nothing.
  ops::QuantFormat load_format;
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, ascending
  int32_t bos_token_id = -1;

  // Whether there may be matrices of integers: then inner dimensions are cut at their blocks.
  bool is_quantized() const {
    return load_format.bits != 0 || (quantization.layout != WeightLayout::kPlain &&
                                     quantization.layout != WeightLayout::kFp8Blocks);
  }
  bool is_latent() const { return latent.kv_rank > 0; }
  // Of o's inputs, those that belong to one head.
  int32_t value_dim() const { return is_latent() ? latent.value_dim : head_dim; }
  int32_t longest_served() const { return served_positions > 0 ? served_positions : max_positions; }
  int64_t window_of(int32_t layer) const {
    const bool is_full = !full_layers.empty() && full_layers[static_cast<size_t>(layer)];
    return is_full ? 0 : sliding_window;
  }
  int32_t n_kv_layers() const { return n_layers - kv_shared_layers; }
  // Whose keys and values a layer reads: its own, or another's of its kind.
  int32_t kv_layer_of(int32_t layer) const;
  int32_t head_dim_of(int32_t layer) const {
    return full_head_dim > 0 && window_of(layer) == 0 ? full_head_dim : head_dim;
  }
  int32_t n_kv_heads_of(int32_t layer) const {
    return full_kv_heads > 0 && window_of(layer) == 0 ? full_kv_heads : n_kv_heads;
  }
  int32_t ffn_dim_of(int32_t layer) const {
    return double_wide_mlp && layer >= n_kv_layers() ? 2 * ffn_dim : ffn_dim;
  }
  // Whether a layer has no projection of values, which are its keys before norm and rope.
  bool k_is_v(int32_t layer) const { return full_k_is_v && window_of(layer) == 0; }
  bool layers_differ() const { return full_head_dim > 0 || full_kv_heads > 0 || double_wide_mlp; }
  // The same with the sizes and names of one layer for all: for what works on that layer alone.
  ModelConfig of_layer(int32_t layer) const;
  bool has_experts(int32_t layer) const {
    if (experts.count == 0) return false;
    return experts.dense_layers.empty() || !experts.dense_layers[static_cast<size_t>(layer)];
  }
  bool has_rope(int32_t layer) const {
    if (alibi || names.has_positions()) return false;
    return no_rope_layers.empty() || !no_rope_layers[static_cast<size_t>(layer)];
  }
};

// Sampling defaults of generation_config.json; absent values keep what they were.
struct GenerationDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};
GenerationDefaults load_generation_defaults(const std::filesystem::path& model_dir);

}  // namespace outrider
