// See acceptance.h.
#include "scheduler/pacing/acceptance.h"

#include <algorithm>
#include <cmath>

#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

double odds(double chance) {
  const double inside = std::clamp(chance, 0.001, 0.999);
  return inside / (1 - inside);
}

}  // namespace

void AcceptanceCounts::add(bool accepted, double memory_tokens) {
  const double kept = 1 - 1 / memory_tokens;
  num_examined = kept * num_examined + 1;
  num_accepted = kept * num_accepted + (accepted ? 1 : 0);
}

void AcceptanceCounts::add(int32_t num_drafted, int32_t num_accepted_tokens, double memory_tokens) {
  for (int32_t i = 0; i < std::min(num_drafted, num_accepted_tokens + 1); ++i)
    add(i < num_accepted_tokens, memory_tokens);
}

double AcceptanceCounts::estimate(double prior, double prior_tokens) const {
  return (num_accepted + prior_tokens * prior) / (num_examined + prior_tokens);
}

void AcceptanceModel::record_result(uint64_t sequence_id,
                                    int32_t num_drafted,
                                    int32_t num_accepted) {
  for (int32_t i = 0; i < std::min(num_drafted, num_accepted + 1); ++i) {
    const bool accepted = i < num_accepted;
    AcceptanceCounts& position = positions_[static_cast<size_t>(std::min(i, kMostDraftTokens - 1))];
    position.add(accepted, pacing.shared_memory_tokens);
    server_.add(accepted, pacing.shared_memory_tokens);
    sequences_[sequence_id].add(accepted, pacing.sequence_memory_tokens);
    num_rounds_without_ = 0;
    if (accepted) num_failed_retries_ = 0;
  }
}

void AcceptanceModel::record_nothing() {
  const double patience =
      std::min(std::ldexp(pacing.retry_after_rounds, num_failed_retries_), pacing.step_memory);
  if (static_cast<double>(++num_rounds_without_) <= patience) return;
  num_rounds_without_ = 0;
  ++num_failed_retries_;
  // Whatever was known counts as two tokens from now on: one that stands, or does not, decides.
  const auto fade = [](AcceptanceCounts& counts, double most) {
    if (counts.num_examined <= most) return;
    counts.num_accepted *= most / counts.num_examined;
    counts.num_examined = most;
  };
  fade(server_, 2);
  for (AcceptanceCounts& counts : positions_) fade(counts, 2);
  for (auto& [id, counts] : sequences_) fade(counts, 1);
}

double AcceptanceModel::acceptance() const {
  return server_.estimate(pacing.prior_acceptance, pacing.sequence_prior_tokens);
}

// How the sequence differs from the server multiplies the odds at every position.
SurvivalCurve AcceptanceModel::curve(uint64_t sequence_id, int32_t num_positions) const {
  const double all = acceptance();
  AcceptanceCounts own;
  if (const auto found = sequences_.find(sequence_id); found != sequences_.end())
    own = found->second;
  const double mine = own.estimate(all, pacing.sequence_prior_tokens);
  const double ratio = odds(mine) / odds(all);
  SurvivalCurve curve{};
  double survival = 1;
  for (size_t i = 0; i < static_cast<size_t>(num_positions); ++i) {
    const double here = ratio * odds(positions_[i].estimate(all, pacing.position_prior_tokens));
    survival *= here / (1 + here);
    curve[i] = static_cast<float>(survival);
  }
  return curve;
}

}  // namespace outrider
