// What readers of families share: a decoder's sizes, activation, rope and windows, with the keys
// and defaults in which families differ.
#pragma once

#include "models/families/families.h"

namespace outrider {

inline constexpr int64_t kMaxPositions = 1 << 28;
inline constexpr int64_t kMaxVocab = 2'000'000;
inline constexpr int64_t kMaxFfn = 1 << 20;
inline constexpr int64_t kMaxHeadDim = 1024;

// llama's keys and Hugging Face's defaults of a family; 0: the file must say it.
struct DecoderKeys {
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* ffn = "intermediate_size";
  const char* positions = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
  const char* activation = "hidden_act";
  int32_t default_heads = 0;
  int32_t default_kv_heads = 0;  // 0: as many as heads
  int32_t default_head_dim = 0;  // 0: hidden / heads
  int32_t default_vocab = 0;
  int32_t default_positions = 0;
  double default_eps = 1e-6;
  const char* default_activation = "silu";
  bool tied = false;  // tie_word_embeddings when absent
};
void read_decoder(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys = {});

struct RopeKeys {
  const char* theta = "rope_theta";
  const char* partial = nullptr;  // the share of a head that turns; null: always all of it
  double default_theta = 10'000.0;
  double default_partial = 1.0;
  bool of_kinds = false;  // windowed layers have a rope of their own
  double local_theta = 10'000.0;
  bool longrope = false;  // "su" and "yarn" are names of it
};
// Both forms: rope_theta beside rope_scaling (before transformers 5), and rope_parameters holding
// all of it. After read_decoder.
void read_rope(const ConfigFields& fields, ModelConfig& config, const RopeKeys& keys = {});

// Of every layer, whether it is windowed, where the file lists them.
std::optional<std::vector<bool>> windowed_layers(const ConfigFields& fields,
                                                 const ModelConfig& config);
// sliding_window on the layers that layer_types names, or else on all but every pattern-th.
void read_windows(const ConfigFields& fields,
                  ModelConfig& config,
                  int32_t default_window,
                  int32_t default_pattern);

// Hugging Face's keys and defaults of a family with experts; 0: the file must say it.
struct ExpertKeys {
  const char* count = "num_experts";
  const char* other_count = nullptr;  // another name of it
  const char* per_row = "num_experts_per_tok";
  const char* ffn = "moe_intermediate_size";
  int32_t default_count = 0;
  int32_t default_per_row = 0;
  int32_t default_ffn = 0;
};
// config.experts' count, per_row and ffn_dim. After read_decoder.
void read_experts(const ConfigFields& fields, ModelConfig& config, const ExpertKeys& keys);
// n_group, topk_group, routed_scaling_factor and norm_topk_prob.
struct RouterDefaults {
  int32_t groups = 1;
  int32_t chosen_groups = 1;
  double scale = 1.0;
};
void read_router(const ConfigFields& fields,
                 ModelConfig& config,
                 const RouterDefaults& defaults = {});

// For a switch of which only one setting is computed.
void refuse_unless(const ConfigFields& fields, const char* key, bool setting);

}  // namespace outrider
