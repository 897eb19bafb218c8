// How positions enter queries, keys and scores: the rotation speed of every pair of a head's
// dimensions, with the scaling a model was trained for, and what else there is. Pure.
#pragma once

#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"

namespace outrider {

// [rotary_dim / 2], theta^(-2i / rotary_dim) before scaling (Su et al. 2021). llama3: low
// frequencies divided by factor, high ones kept, a ramp between (Llama 3.1). yarn: the same idea
// with the ramp over dimensions (Peng et al. 2023, section 3.2). longrope: a divisor a pair, its
// long ones when more than the original length is served (Ding et al. 2402.13753; a request's own
// length cannot decide, for keys that are cached would have to be rotated again). proportional: the
// first pairs turn, the others stand (Gemma 4). Rounded to float where Hugging Face's code is in
// float.
std::vector<float> rope_frequencies(const RopeConfig& rope, int32_t served_positions = 0);

// On scores of heads of this length.
float score_scale(const ModelConfig& config, int64_t head_dim);

// ALiBi's slopes of these heads (Press et al. 2021) in Hugging Face's reading: rounded to bf16, and
// scaled as the scores are.
std::vector<float> alibi_slopes(const ModelConfig& config, Range heads);

// On the queries of a position (ModelConfig::query_growth).
float query_factor(const ModelConfig& config, int32_t position);

}  // namespace outrider
