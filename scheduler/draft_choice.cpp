// See draft_choice.h.
#include "scheduler/draft_choice.h"

#include <algorithm>

#include "scheduler/statistics.h"

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
  uint64_t best_key = 0;
  for (const WeightedToken& entry : best) {
    // Drawn from exactly the floats that are sent: the target's test divides by them.
    const auto draft_prob = static_cast<float>(entry.weight / sum);
    proposal.candidates.push_back({entry.token, draft_prob});
    const double log_prob = exact_log(static_cast<double>(draft_prob));
    best_key = std::max(best_key, noisy_key(log_prob, entry.token, noise));
  }
  proposal.token = key_token(best_key);
  if (proposal.candidates.size() == 1) proposal.candidates.clear();
  return proposal;
}

}  // namespace outrider
