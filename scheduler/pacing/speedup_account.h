// What speculation brought and what it cost: pure arithmetic over notes of each round, for
// /metrics, logs and benchmarks. The coordinator's thread notes; no clock here.
//
// The counterfactual: a round gave num_tokens to num_sequences sequences. Without speculation they
// would have got num_sequences a round, so num_tokens / num_sequences rounds of one row each, with
// the same overhead around the step. Only rounds that read no prompt are compared: a prompt costs
// the same either way. Nor are rounds that took many times as long as usual: a process that was
// stopped, a machine that was suspended, and without speculation too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/pacing/round_record.h"

namespace outrider {

// Sums since the start. Ratios are 0 where nothing is known.
struct SpeedupTotals {
  double round_s = 0;
  double waited_s = 0;
  double step_s = 0;
  double draft_busy_s = 0;
  double draft_idle_s = 0;  // without work, while requests were running
  int64_t num_draft_steps = 0;
  int64_t num_rows = 0;
  int64_t num_wasted_rows = 0;  // verified draft tokens that did not stand
  int64_t num_lookups = 0;      // in the speculation caches
  int64_t num_hits = 0;

  // Of the rounds compared.
  double compared_s = 0;
  double plain_s = 0;        // what their tokens would have taken without speculation
  double plain_steps_s = 0;  // sum of a plain step's estimates
  int64_t num_rounds = 0;
  int64_t num_tokens = 0;
  int64_t num_turns = 0;  // sum of num_sequences
  int64_t num_drafts = 0;
  int64_t num_ready = 0;
  int64_t num_drafted = 0;
  int64_t num_examined = 0;
  int64_t num_accepted = 0;

  double bubble() const;  // share of the rounds' time in which the targets waited for the draft
  double hit_rate() const;
  double plain_tokens_per_s() const;
  double measured_speedup() const;  // plain_s / compared_s
  double acceptance() const;        // alpha: accepted of examined
  double mean_draft_len() const;    // K
  double cost_ratio() const;        // c: a draft step by a plain step
  // E / T. E = tokens a turn: (1 - a^(K+1)) / (1 - a) with a draft (Leviathan et al., arXiv
  // 2211.17192, Eq. 1), else 1. T = plain steps a turn: max(1, K c) with a draft that was at hand,
  // 1 + K c with one that was waited for, else 1; so Theorem 3.8 there when every draft was waited
  // for. It takes a verification to cost what a plain step costs.
  double predicted_speedup() const;
};

// How long rounds take lately.
class RecentRounds {
 public:
  // Notes it too; whether it took far longer than the others' median.
  bool is_stall(double round_s);

 private:
  std::vector<double> seconds_;  // of the last ones, in no order
  size_t next_ = 0;              // the oldest's place
};

class SpeedupAccount {
 public:
  void record_round(const RoundRecord& round);
  // So many outcomes were looked up, for so many of them the next block was prepared.
  void record_lookups(int64_t num_lookups, int64_t num_hits);
  // num_steps forward passes of the draft that took so long together, and how long it had no work.
  void record_draft(int64_t num_steps, double busy_s, double idle_s);

  const SpeedupTotals& totals() const { return totals_; }

 private:
  RecentRounds recent_;
  SpeedupTotals totals_;
};

}  // namespace outrider
