// The one model of acceptance: how likely draft tokens are to be accepted, by position in the draft
// and by sequence, learned from verifications and from what a draft would have proposed where
// nothing was verified. Plain values; no clock. The coordinator chooses drafts by it, and the draft
// rank keeps the counts of each sequence to choose what it prepares.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "scheduler/pacing/goodput.h"

namespace outrider {

// Sums that decay: how many tokens were examined and how many of them were accepted.
struct AcceptanceCounts {
  double num_examined = 0;
  double num_accepted = 0;
  // memory_tokens: as many of the last tokens count.
  void add(bool accepted, double memory_tokens);
  // A draft: all accepted tokens and the first that was rejected are examined.
  void add(int32_t num_drafted, int32_t num_accepted_tokens, double memory_tokens);
  // As if prior_tokens had been seen before, of acceptance `prior`.
  double estimate(double prior, double prior_tokens) const;
};

class AcceptanceModel {
 public:
  // A block of num_drafted tokens was verified and num_accepted of them were accepted. What the
  // draft proposed for the next token without a row of its own is a block of one: accepted where
  // the target chose the same.
  void record_result(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted);
  // A round without either. After many the server's estimate drifts back towards a mild optimism,
  // so that drafts are tried again; after each try that fails, twice as many, up to step_memory.
  void record_nothing();
  void forget(uint64_t sequence_id) { sequences_.erase(sequence_id); }

  // The sequence's own, blended with what other sequences showed: a new one begins with that.
  // Of the first num_positions; the rest is 0.
  SurvivalCurve curve(uint64_t sequence_id, int32_t num_positions = kMostDraftTokens) const;
  double acceptance() const;  // of the server, all positions

 private:
  std::array<AcceptanceCounts, kMostDraftTokens> positions_{};
  AcceptanceCounts server_;
  std::map<uint64_t, AcceptanceCounts> sequences_;
  int64_t num_rounds_without_ = 0;
  int num_failed_retries_ = 0;
};

}  // namespace outrider
