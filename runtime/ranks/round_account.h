// What the coordinator notes of each round for those who look on: the speed-up account, its
// metrics, and each sequence's verdict in the trace. Rank 0's round thread only.
#pragma once

#include <span>

#include "http/serving_metrics.h"
#include "runtime/base/trace.h"
#include "scheduler/round.h"
#include "scheduler/speedup_account.h"

namespace outrider {

// Seconds of a round; see SpeedupRound.
struct RoundSeconds {
  double round_s = 0;
  double waited_s = 0;
  double step_s = 0;
  double plain_step_s = 0;
};

class RoundAccount {
 public:
  // own_drafts: draft tokens are the coordinator's own (n-grams), nobody waits for them.
  RoundAccount(ServingMetrics& metrics, bool own_drafts);

  // A round that was decided alike. step_begin_ns: trace_now_ns() before the targets began.
  // sources: where each sequence's draft tokens came from, in the plan's order; empty = all were
  // waited for.
  void note_round(const RoundPlan& plan,
                  const RoundDecision& decision,
                  const RoundSeconds& seconds,
                  int64_t step_begin_ns,
                  std::span<const BlockSource> sources = {});
  void note_reply(const DraftReply& reply);
  void note_lookup(bool hit) { account_.note_lookup(hit); }
  void note_stale_blocks(int64_t num_blocks) { num_stale_blocks_ += num_blocks; }

  // Once a round: the metrics follow.
  void publish();
  const SpeedupTotals& totals() const { return account_.totals(); }
  // One line for logs; empty when nothing was drafted.
  std::string summary() const;

 private:
  BlockSource source_of(const SequencePlan& planned,
                        size_t index,
                        std::span<const BlockSource> sources) const;

  ServingMetrics& metrics_;
  const bool own_drafts_;
  SpeedupAccount account_;
  SpeedupTotals published_;
  int64_t num_stale_blocks_ = 0;
  int64_t num_stale_published_ = 0;
};

// The same line of any interval, for benchmarks; empty when nothing was drafted.
std::string speedup_summary(const SpeedupTotals& totals);

}  // namespace outrider
