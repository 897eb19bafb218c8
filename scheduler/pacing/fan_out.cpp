// See fan_out.h.
#include "scheduler/pacing/fan_out.h"

#include <algorithm>
#include <tuple>

#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

void add_outcomes(const OutcomeOdds& odds, int32_t sequence, std::vector<Outcome>& outcomes) {
  double survival = 1;
  for (int32_t k = 0; k <= odds.num_in_flight; ++k) {
    const bool all = k == odds.num_in_flight;
    const double here = all ? survival : survival * (1 - odds.acceptance);
    const RankChances& ranks = all ? *odds.after_all : *odds.after_some;
    const auto at = static_cast<size_t>(k);
    const int32_t num_ranks =
        at < odds.num_guesses.size() ? std::min(odds.num_guesses[at], kNumRanks) : kNumRanks;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const double chance = here * ranks.at(rank);
      if (chance >= pacing.least_outcome_chance) outcomes.push_back({sequence, k, rank, chance});
    }
    survival *= odds.acceptance;
  }
}

}  // namespace

RankChances::RankChances() : num_noted_(pacing.sequence_prior_tokens) {
  const double share = pacing.best_guess_share;
  double left = 1;
  for (double& count : counts_) {
    count = num_noted_ * left * share;
    left -= left * share;
  }
}

void RankChances::note(int32_t rank) {
  const double kept = 1 - 1 / pacing.shared_memory_tokens;
  for (double& count : counts_) count *= kept;
  num_noted_ = num_noted_ * kept + 1;
  if (rank >= 0 && rank < kNumRanks) counts_[static_cast<size_t>(rank)] += 1;
}

double RankChances::at(int32_t rank) const {
  return counts_[static_cast<size_t>(rank)] / num_noted_;
}

std::vector<Outcome> fan_out(std::span<const OutcomeOdds> odds,
                             int32_t max_outcomes,
                             int32_t max_per_sequence) {
  std::vector<Outcome> outcomes;
  for (size_t i = 0; i < odds.size(); ++i) add_outcomes(odds[i], static_cast<int32_t>(i), outcomes);
  std::sort(outcomes.begin(), outcomes.end(), [](const Outcome& a, const Outcome& b) {
    return std::tuple(-a.chance, a.sequence, a.num_accepted, a.rank) <
           std::tuple(-b.chance, b.sequence, b.num_accepted, b.rank);
  });
  std::vector<int32_t> num_taken(odds.size(), 0);
  std::erase_if(outcomes, [&](const Outcome& outcome) {
    int32_t& taken = num_taken[static_cast<size_t>(outcome.sequence)];
    return taken == max_per_sequence || (++taken, false);
  });
  if (static_cast<int64_t>(outcomes.size()) > std::max(max_outcomes, 0))
    outcomes.resize(static_cast<size_t>(std::max(max_outcomes, 0)));
  return outcomes;
}

int32_t num_worth_preparing(std::span<const Outcome> outcomes, const VerifyTime& time) {
  if (!(time.verify_s > 0) || time.step_s.empty() || !(time.step_s[0] > 0))
    return static_cast<int32_t>(outcomes.size());
  const auto most = static_cast<int32_t>(std::min(outcomes.size(), time.step_s.size() - 1));
  int32_t best = std::min(most, 1);
  double best_value = 0;
  double hit_chance = 0;
  for (int32_t n = 1; n <= most; ++n) {
    hit_chance += outcomes[static_cast<size_t>(n) - 1].chance;
    const double step_s = time.step_s[static_cast<size_t>(n)];
    // The first step makes the bonus draft.
    const double num_steps = step_s > 0 ? time.verify_s / step_s - 1 : 0;
    const double num_drafted = std::clamp(num_steps, 0.0, static_cast<double>(time.draft_len));
    // 1 + a + .. + a^(m - 1) for whole m, straight lines between.
    double tokens = 0;
    double survival = 1;
    for (double left = num_drafted; left > 0; left -= 1) {
      tokens += survival * std::min(left, 1.0);
      survival *= time.acceptance;
    }
    if (hit_chance * tokens <= best_value) continue;
    best_value = hit_chance * tokens;
    best = n;
  }
  return best;
}

}  // namespace outrider
