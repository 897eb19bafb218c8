// How a draft makes its proposal from the few tokens it thinks likeliest: the request's filters,
// and the draw under the rules that need a distribution. Shared by the draft model (propose.cpp)
// and by the drafts that count (bigram.cpp); whichever of them drafts calls it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/numbers/rng.h"
#include "scheduler/round.h"

namespace outrider {

struct WeightedToken {
  int32_t token = 0;
  double weight = 0.0;  // relative to the likeliest one's, which is 1
};

// top-k, top-p (of `mass`, the weight of all tokens there are) and min-p on the best tokens, which
// come in descending weight. A top_p that needs more of them than there are keeps all.
void apply_filters(const SamplingParams& params, double mass, std::vector<WeightedToken>& best);

// Renormalises the tokens and draws one of them: it and what it was drawn from, as it is sent.
DraftToken draw_candidate(std::span<const WeightedToken> best, const NoiseKey& noise);

}  // namespace outrider
