// What a token's log-probabilities tell an asker.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace outrider {

// Log-probabilities under the target's real distribution: log softmax of its raw logits, before
// temperature, penalties and filters.
struct TokenLogprobs {
  float logprob = 0.0f;
  int32_t rank = 0;  // 1 = the most likely token
  std::vector<std::pair<int32_t, float>>
      top;  // (id, logprob), most likely first, lowest id first in ties
};

}  // namespace outrider
