// See branch_chooser.h.
#include "runtime/ranks/draft/branch_chooser.h"

#include <algorithm>

#include "scheduler/pacing/constants.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

int32_t guess_of_rank(const DraftSequence& sequence, int32_t num_accepted, int32_t rank) {
  const auto row = static_cast<size_t>(num_accepted);
  if (row >= sequence.main_chain.drafted.size()) return -1;
  const std::span<const int32_t> others = sequence.main_chain.others[row].tokens();
  if (num_accepted == sequence.in_flight) {
    if (rank == 0) return sequence.main_chain.drafted[row].token;
    --rank;
  }
  return static_cast<size_t>(rank) < others.size() ? others[static_cast<size_t>(rank)] : -1;
}

// A block behind the end of the text is of no use.
int32_t useful_len(const DraftSequence& sequence, int32_t num_accepted, int32_t guess) {
  const SamplingParams& params = sequence.params;
  const int64_t num_output =
      static_cast<int64_t>(sequence.tokens.size()) - sequence.num_prompt_tokens + num_accepted;
  const bool ends =
      num_output >= params.min_tokens &&
      std::binary_search(params.stop_token_ids.begin(), params.stop_token_ids.end(), guess);
  if (ends) return 0;
  // The guess itself, and the token that the target adds to any block.
  const int64_t num_left = params.max_tokens - num_output - 2;
  return static_cast<int32_t>(std::clamp<int64_t>(num_left, 0, sequence.draft_len));
}

void grow(DraftSequence& sequence, int32_t num_accepted, const PendingOutcome& outcome) {
  DraftBranch branch;
  branch.num_accepted = num_accepted;
  branch.guess = guess_of_rank(sequence, num_accepted, outcome.rank);
  if (branch.guess < 0) return;
  branch.chance = outcome.chance;
  branch.wanted = useful_len(sequence, num_accepted, branch.guess);
  if (branch.wanted == 0) return;
  branch.chain.processed.count_as(sequence.main_chain.processed);
  sequence.branches.push_back(std::move(branch));
}

}  // namespace

BranchChooser::Chances& BranchChooser::chances_of(const DraftSequence& sequence) {
  return chances_[static_cast<size_t>(resolve_rule(sequence.params))];
}

void BranchChooser::learn(DraftSequence& sequence, std::span<const int32_t> committed) {
  if (!sequence.drafts_async() || committed.empty()) return;
  const std::vector<DraftToken>& drafted = sequence.main_chain.drafted;
  const auto num_accepted = static_cast<int32_t>(committed.size()) - 1;
  if (num_accepted > sequence.in_flight || num_accepted > sequence.main_chain.num_drafted()) return;
  for (int32_t i = 0; i < num_accepted; ++i) {
    const auto at = static_cast<size_t>(i);
    if (drafted[at].token != committed[at]) return;  // other tokens were in flight
  }
  sequence.acceptance.add(sequence.in_flight, num_accepted, pacing.sequence_memory_tokens);
  acceptance_.add(sequence.in_flight, num_accepted, pacing.shared_memory_tokens);
  if (sequence.mode != AsyncDrafting::kCache || num_accepted == sequence.main_chain.num_drafted())
    return;
  const bool all = num_accepted == sequence.in_flight;
  int32_t rank = 0;
  while (rank < kNumRanks && guess_of_rank(sequence, num_accepted, rank) != committed.back())
    ++rank;
  RankChances& chances = all ? chances_of(sequence).after_all : chances_of(sequence).after_some;
  chances.note(rank < kNumRanks ? rank : -1);
}

OutcomeOdds BranchChooser::odds_of(const DraftSequence& sequence) {
  OutcomeOdds odds;
  odds.num_in_flight = sequence.in_flight;
  const double all = acceptance_.estimate(pacing.prior_acceptance, pacing.sequence_prior_tokens);
  odds.acceptance = sequence.acceptance.estimate(all, pacing.sequence_prior_tokens);
  odds.after_some = &chances_of(sequence).after_some;
  odds.after_all = &chances_of(sequence).after_all;
  const bool chain = sequence.mode == AsyncDrafting::kChain;
  for (int32_t k = 0; k < sequence.in_flight; ++k) {
    const bool known = !chain && k < sequence.main_chain.num_drafted();
    const auto row = static_cast<size_t>(k);
    odds.num_guesses.push_back(
        known ? static_cast<int32_t>(sequence.main_chain.others[row].tokens().size()) : 0);
  }
  if (chain) odds.num_guesses.push_back(1);
  return odds;
}

void BranchChooser::record_verify_time(double seconds) { update_average(&verify_s_, seconds); }

void BranchChooser::begin(std::span<DraftSequence* const> begun,
                          int32_t max_branches,
                          const StepTimes& times) {
  std::vector<OutcomeOdds> odds;
  VerifyTime time{.verify_s = verify_s_};
  const auto num_sequences = static_cast<int32_t>(begun.size());
  for (const DraftSequence* sequence : begun) {
    odds.push_back(odds_of(*sequence));
    time.draft_len = std::max(time.draft_len, sequence->draft_len);
    time.acceptance += odds.back().acceptance / num_sequences;
  }
  std::vector<Outcome> outcomes = fan_out(odds, max_branches, kMaxBranchesOfOne);
  step_s_.clear();
  for (int32_t n = 0; n <= static_cast<int32_t>(outcomes.size()); ++n)
    step_s_.push_back(times.at({.num_rows = std::max(n, num_sequences)}));
  time.step_s = step_s_;
  outcomes.resize(static_cast<size_t>(num_worth_preparing(outcomes, time)));
  for (const Outcome& outcome : outcomes) {
    DraftSequence& sequence = *begun[static_cast<size_t>(outcome.sequence)];
    const PendingOutcome pending = {outcome.rank, outcome.chance};
    if (outcome.num_accepted == sequence.in_flight) {
      sequence.pending.push_back(pending);
    } else {
      grow(sequence, outcome.num_accepted, pending);
    }
  }
  for (DraftSequence* sequence : begun) grow_pending(*sequence);
}

void BranchChooser::grow_pending(DraftSequence& sequence) {
  if (sequence.main_chain.num_drafted() <= sequence.in_flight) return;
  for (const PendingOutcome& outcome : sequence.pending)
    grow(sequence, sequence.in_flight, outcome);
  sequence.pending.clear();
}

}  // namespace outrider
