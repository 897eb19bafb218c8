// The rotation speed of every pair of a head's dimensions, with the scaling a model was trained
// for. Pure.
#pragma once

#include <vector>

#include "models/checkpoint/model_config.h"

namespace outrider {

// [rotary_dim / 2], theta^(-2i / rotary_dim) before scaling (Su et al. 2021). llama3: low
// frequencies divided by factor, high ones kept, a ramp between (Llama 3.1). yarn: the same idea
// with the ramp over dimensions (Peng et al. 2023, section 3.2). longrope: a divisor a pair, its
// long ones when more than the original length is served (Ding et al. 2402.13753; a request's own
// length cannot decide, for keys that are cached would have to be rotated again). proportional: the
// first pairs turn, the others stand (Gemma 4). Rounded to float where Hugging Face's code is in
// float.
std::vector<float> rope_frequencies(const RopeConfig& rope, int32_t served_positions = 0);

}  // namespace outrider
