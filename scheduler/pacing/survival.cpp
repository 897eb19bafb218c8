// See survival.h.
#include "scheduler/pacing/survival.h"

#include <algorithm>

namespace outrider {
namespace {

// Tokens that count: a sequence's own last ones, and the server's.
constexpr double kSequenceMemory = 40;
constexpr double kServerMemory = 400;
constexpr double kPositionMemory = 200;
// A sequence begins as if it had shown so many tokens like the server's, a position as if it had
// shown so many like all positions, the server as if it had shown so many of this acceptance.
constexpr double kSequencePrior = 6;
constexpr double kPositionPrior = 20;
constexpr double kServerPrior = 4;
constexpr double kHope = 0.6;
// Rounds without evidence until the next drift towards hope.
constexpr int64_t kShortestPatience = 128;
constexpr int64_t kLongestPatience = 16384;

double odds(double chance) {
  const double inside = std::clamp(chance, 0.001, 0.999);
  return inside / (1 - inside);
}

}  // namespace

void Survival::Counts::add(bool accepted, double memory) {
  const double kept = 1 - 1 / memory;
  num_examined = kept * num_examined + 1;
  num_accepted_tokens = kept * num_accepted_tokens + (accepted ? 1 : 0);
}

void Survival::add(uint64_t sequence_id, int32_t position, bool accepted) {
  positions_[static_cast<size_t>(std::min(position, kMostDraftTokens - 1))].add(accepted,
                                                                                kPositionMemory);
  server_.add(accepted, kServerMemory);
  sequences_[sequence_id].add(accepted, kSequenceMemory);
  num_rounds_without_ = 0;
  if (accepted) patience_ = kShortestPatience;
}

void Survival::record_result(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted) {
  for (int32_t i = 0; i < std::min(num_drafted, num_accepted + 1); ++i) {
    add(sequence_id, i, i < num_accepted);
  }
}

void Survival::record_counterfactual(uint64_t sequence_id, bool accepted) {
  add(sequence_id, 0, accepted);
}

void Survival::record_nothing() {
  if (++num_rounds_without_ <= std::max(patience_, kShortestPatience)) return;
  num_rounds_without_ = 0;
  patience_ = std::min(kLongestPatience, 2 * std::max(patience_, kShortestPatience));
  // Whatever was known counts as two tokens from now on: one that stands, or does not, decides.
  const auto fade = [](Counts& counts, double most) {
    if (counts.num_examined <= most) return;
    counts.num_accepted_tokens *= most / counts.num_examined;
    counts.num_examined = most;
  };
  fade(server_, 2);
  for (Counts& counts : positions_) fade(counts, 2);
  for (auto& [id, counts] : sequences_) fade(counts, 1);
}

double Survival::acceptance() const {
  return (server_.num_accepted_tokens + kServerPrior * kHope) /
         (server_.num_examined + kServerPrior);
}

double Survival::at_position(size_t i) const {
  return (positions_[i].num_accepted_tokens + kPositionPrior * acceptance()) /
         (positions_[i].num_examined + kPositionPrior);
}

// How the sequence differs from the server multiplies the odds at every position.
SurvivalCurve Survival::curve(uint64_t sequence_id, int32_t num_positions) const {
  const double all = acceptance();
  Counts own;
  if (const auto found = sequences_.find(sequence_id); found != sequences_.end())
    own = found->second;
  const double mine =
      (own.num_accepted_tokens + kSequencePrior * all) / (own.num_examined + kSequencePrior);
  const double ratio = odds(mine) / odds(all);
  SurvivalCurve curve{};
  double survival = 1;
  for (size_t i = 0; i < static_cast<size_t>(num_positions); ++i) {
    const double here = ratio * odds(at_position(i));
    survival *= here / (1 + here);
    curve[i] = static_cast<float>(survival);
  }
  return curve;
}

}  // namespace outrider
