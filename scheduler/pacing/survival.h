// How likely draft tokens are to stand: by position in the block and by sequence, learned from
// verdicts, and from what a draft would have proposed where nothing was verified. Plain values; no
// clock. Used by the coordinator's planner of speculation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "scheduler/pacing/goodput.h"

namespace outrider {

class Survival {
 public:
  // A block of num_drafted tokens was verified and num_accepted of them were accepted.
  void record_result(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted);
  // What the draft proposed for the next token without a row of its own, and whether the target
  // chose the same: position 0 of a block that nobody verified.
  void record_counterfactual(uint64_t sequence_id, bool accepted);
  // A round without either. After many the server's estimate drifts back towards a mild optimism,
  // so that drafts are tried again; after each try that fails, twice as many.
  void record_nothing();
  void forget(uint64_t sequence_id) { sequences_.erase(sequence_id); }

  // The sequence's own, blended with what other sequences showed: a new one begins with that.
  // Of the first num_positions; the rest is 0.
  SurvivalCurve curve(uint64_t sequence_id, int32_t num_positions = kMostDraftTokens) const;
  double acceptance() const;  // of the server, all positions

 private:
  // Sums that decay: how many tokens were examined and how many of them were accepted.
  struct Counts {
    double num_examined = 0;
    double num_accepted_tokens = 0;
    void add(bool accepted, double memory);
  };
  void add(uint64_t sequence_id, int32_t position, bool accepted);
  double at_position(size_t i) const;

  std::array<Counts, kMostDraftTokens> positions_{};
  Counts server_;
  std::map<uint64_t, Counts> sequences_;
  int64_t num_rounds_without_ = 0;
  int64_t patience_ = 0;  // rounds without evidence until the next drift; 0 = the shortest
};

}  // namespace outrider
