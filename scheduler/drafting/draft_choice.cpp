// See draft_choice.h.
#include "scheduler/drafting/draft_choice.h"

#include <algorithm>
#include <limits>

#include "scheduler/rows/row_sums.h"

namespace outrider {

void apply_filters(const SamplingParams& params, double mass, std::vector<WeightedToken>& best) {
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < best.size()) {
    best.resize(static_cast<size_t>(params.top_k));
    mass = 0.0;
    for (const WeightedToken& entry : best) mass += entry.weight;
  }
  size_t kept = best.size();
  if (params.top_p < 1.0f) {
    double reached = 0.0;
    for (kept = 0; kept < best.size(); ++kept) {
      if (kept > 0 && reached >= static_cast<double>(params.top_p) * mass) break;
      reached += best[kept].weight;
    }
  }
  // The maximum's weight is 1.
  while (kept > 1 && !(best[kept - 1].weight >= static_cast<double>(params.min_p))) --kept;
  while (kept > 1 && !(best[kept - 1].weight > 1e-7)) --kept;
  best.resize(kept);
}

DraftToken draw_candidate(std::span<const WeightedToken> best, const NoiseKey& noise) {
  double sum = 0.0;
  for (const WeightedToken& entry : best) sum += entry.weight;
  DraftToken proposal;
  // The least -log(u) / draft_prob, which is the greatest log(draft_prob) + Gumbel noise. Since
  // -log(u) >= 1 - u, most need no logarithm.
  double least = std::numeric_limits<double>::infinity();
  for (const WeightedToken& entry : best) {
    // Drawn from exactly the floats that are sent: the target's test divides by them.
    const auto draft_prob = static_cast<float>(entry.weight / sum);
    proposal.candidates.push_back({entry.token, draft_prob});
    const uint32_t bits = noise_bits(noise, entry.token);
    const double bar = exact_mul(least, static_cast<double>(draft_prob));
    if (!(1.0 - uniform_from_bits(bits) < bar)) continue;
    const double exponential = exponential_from_bits(bits);
    if (!(exponential < bar)) continue;
    least = exact_div(exponential, static_cast<double>(draft_prob));
    proposal.token = entry.token;
  }
  if (proposal.candidates.size() == 1) proposal.candidates.clear();
  return proposal;
}

}  // namespace outrider
