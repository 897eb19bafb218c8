// What the members of one kin have in common.
#pragma once

#include "models/families/readers.h"

namespace outrider {

// Qwen: sliding_window holds with use_sliding_window only, on the layers of layer_types or from
// max_window_layers on.
void read_qwen_windows(const ConfigFields& fields, ModelConfig& config);

// OLMo: no norm before attention and MLP, one after each; norms of all queries and of all keys.
void set_olmo(const ConfigFields& fields, ModelConfig& config);

// Gemma: the embedding times the root of its length, norms before and after.
void read_gemma(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys);
// Gemma 2 and 3: those norms are of 1 + w, scores are divided by the root of query_pre_attn_scalar.
void read_gemma_2_or_3(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys);

// The root of a length, as such models multiply their embeddings: rounded to the type of the
// weights.
float embedding_scale_of(const ModelConfig& config, int32_t length);

// Factors on embedding, scores, residual stream and logits; biases of attention.
void read_granite(const ConfigFields& fields, ModelConfig& config);

// Experts of Qwen, and the layers that have none.
void read_qwen_experts(const ConfigFields& fields, ModelConfig& config, const ExpertKeys& keys);

// Mixtral's keys and names of experts, weights normalised.
void read_mixtral_experts(const ConfigFields& fields,
                          ModelConfig& config,
                          int32_t default_count,
                          int32_t default_per_row);

// A sigmoid router with groups, a shared expert, and first layers without any (GLM, DeepSeek).
void read_sigmoid_router(const ConfigFields& fields,
                         ModelConfig& config,
                         const RouterDefaults& defaults,
                         int32_t default_dense);

}  // namespace outrider
