// Which branches the draft worker grows while rounds are in flight, and what it learns from their
// outcomes: how often a sequence's draft tokens are accepted, and which of the draft's guesses the
// token after them was. Used by the draft worker's thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ranks/draft/chain.h"
#include "runtime/ranks/draft/sequences.h"
#include "scheduler/pacing/step_times.h"

namespace outrider {

class BranchChooser {
 public:
  // Of all sequences, and of one: the coordinator keeps so many of a sequence, and more.
  static constexpr int32_t kMaxBranchesOfOne = 96;

  // From the tokens that are about to be committed.
  void learn(DraftSequence& sequence, std::span<const int32_t> committed);

  // Chooses the outcomes of sequences whose round has just begun, with their branches dropped.
  void begin(std::span<DraftSequence* const> begun, int32_t max_branches, const StepTimes& times);
  // A round was in flight for so long.
  void record_verify_time(double seconds);
  // The bonus draft has been drafted: the branches behind it.
  static void grow_pending(DraftSequence& sequence);

 private:
  struct Chances {
    RankChances after_some;
    RankChances after_all;
  };
  Chances& chances_of(const DraftSequence& sequence);
  OutcomeOdds odds_of(const DraftSequence& sequence);

  std::array<Chances, 4> chances_;  // by VerifyRule
  AcceptanceCounts acceptance_;     // of all sequences
  double verify_s_ = 0;             // moving average of record_verify_time(); 0 = not known
  std::vector<double> step_s_;
};

}  // namespace outrider
