// See rides.h.
#include "runtime/ranks/draft/rides.h"

#include <algorithm>

#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

int32_t guess_of_rank(const DraftCopy& copy, int32_t num_accepted, int32_t rank) {
  const auto row = static_cast<size_t>(num_accepted);
  if (row >= copy.spine.drafted.size()) return -1;
  const std::span<const int32_t> others = copy.spine.others[row].tokens();
  if (num_accepted == copy.in_flight) {
    if (rank == 0) return copy.spine.drafted[row].token;
    --rank;
  }
  return static_cast<size_t>(rank) < others.size() ? others[static_cast<size_t>(rank)] : -1;
}

// A block behind the end of the text is of no use.
int32_t useful_len(const DraftCopy& copy, int32_t num_accepted, int32_t guess) {
  const SamplingParams& params = copy.params;
  const int64_t num_output =
      static_cast<int64_t>(copy.tokens.size()) - copy.num_prompt_tokens + num_accepted;
  const bool ends =
      num_output >= params.min_tokens &&
      std::binary_search(params.stop_token_ids.begin(), params.stop_token_ids.end(), guess);
  if (ends) return 0;
  // The guess itself, and the token that the target adds to any block.
  const int64_t num_left = params.max_tokens - num_output - 2;
  return static_cast<int32_t>(std::clamp<int64_t>(num_left, 0, copy.draft_len));
}

void grow(DraftCopy& copy, int32_t num_accepted, const PendingOutcome& outcome) {
  DraftBranch branch;
  branch.num_accepted = num_accepted;
  branch.guess = guess_of_rank(copy, num_accepted, outcome.rank);
  if (branch.guess < 0) return;
  branch.chance = outcome.chance;
  branch.wanted = useful_len(copy, num_accepted, branch.guess);
  if (branch.wanted > 0) copy.branches.push_back(std::move(branch));
}

}  // namespace

DraftRides::Chances& DraftRides::chances_of(const DraftCopy& copy) {
  return chances_[static_cast<size_t>(resolve_rule(copy.params))];
}

const DraftRides::Chances& DraftRides::chances_of(const DraftCopy& copy) const {
  return chances_[static_cast<size_t>(resolve_rule(copy.params))];
}

void DraftRides::learn(DraftCopy& copy, std::span<const int32_t> committed) {
  if (!copy.rides() || committed.empty()) return;
  const std::vector<DraftToken>& drafted = copy.spine.drafted;
  const auto num_accepted = static_cast<int32_t>(committed.size()) - 1;
  if (num_accepted > copy.in_flight || num_accepted > copy.spine.num_drafted()) return;
  for (int32_t i = 0; i < num_accepted; ++i) {
    const auto at = static_cast<size_t>(i);
    if (drafted[at].token != committed[at]) return;  // other tokens were in flight
  }
  copy.acceptance.note(copy.in_flight, num_accepted);
  if (copy.mode != RideAhead::kCache || num_accepted == copy.spine.num_drafted()) return;
  const bool all = num_accepted == copy.in_flight;
  int32_t rank = 0;
  while (rank < kNumRanks && guess_of_rank(copy, num_accepted, rank) != committed.back()) ++rank;
  RankChances& chances = all ? chances_of(copy).after_all : chances_of(copy).after_some;
  chances.note(rank < kNumRanks ? rank : -1);
}

RideOdds DraftRides::odds_of(const DraftCopy& copy) const {
  RideOdds odds;
  odds.num_in_flight = copy.in_flight;
  odds.acceptance = copy.acceptance.value();
  odds.after_some = &chances_of(copy).after_some;
  odds.after_all = &chances_of(copy).after_all;
  const bool chain = copy.mode == RideAhead::kChain;
  for (int32_t k = 0; k < copy.in_flight; ++k) {
    const bool known = !chain && k < copy.spine.num_drafted();
    const auto row = static_cast<size_t>(k);
    odds.num_guesses.push_back(known ? static_cast<int32_t>(copy.spine.others[row].tokens().size())
                                     : 0);
  }
  if (chain) odds.num_guesses.push_back(1);
  return odds;
}

void DraftRides::note_ride(double seconds) {
  constexpr double kWeight = 0.1;
  ride_s_ = ride_s_ == 0 ? seconds : ride_s_ + kWeight * (seconds - ride_s_);
}

void DraftRides::begin(std::span<DraftCopy* const> begun,
                       int32_t max_branches,
                       const StepTimes& times) {
  std::vector<RideOdds> odds;
  RideTime time{.ride_s = ride_s_};
  const auto num_rides = static_cast<int32_t>(begun.size());
  for (const DraftCopy* copy : begun) {
    odds.push_back(odds_of(*copy));
    time.draft_len = std::max(time.draft_len, copy->draft_len);
    time.acceptance += odds.back().acceptance / num_rides;
  }
  std::vector<Outcome> outcomes = fan_out(odds, max_branches, kMaxBranchesOfOne);
  step_s_.clear();
  for (int32_t n = 0; n <= static_cast<int32_t>(outcomes.size()); ++n)
    step_s_.push_back(times.at(std::max(n, num_rides)));
  time.step_s = step_s_;
  outcomes.resize(static_cast<size_t>(num_worth_preparing(outcomes, time)));
  for (const Outcome& outcome : outcomes) {
    DraftCopy& copy = *begun[static_cast<size_t>(outcome.ride)];
    const PendingOutcome pending = {outcome.rank, outcome.chance};
    if (outcome.num_accepted == copy.in_flight) {
      copy.pending.push_back(pending);
    } else {
      grow(copy, outcome.num_accepted, pending);
    }
  }
  for (DraftCopy* copy : begun) grow_pending(*copy);
}

void DraftRides::grow_pending(DraftCopy& copy) {
  if (copy.spine.num_drafted() <= copy.in_flight) return;
  for (const PendingOutcome& outcome : copy.pending) grow(copy, copy.in_flight, outcome);
  copy.pending.clear();
}

}  // namespace outrider
