// What the coordinator notes of each round for those who look on: the speed-up account, its
// metrics, and each sequence's verdict in the trace. Rank 0's round thread only.
#pragma once

#include <string>

#include "http/serving_metrics.h"
#include "scheduler/batching/planner.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/pacing/speedup_account.h"
#include "scheduler/round.h"

namespace outrider {

// When a round was what; see SpeedupRound for the seconds.
struct RoundClock {
  double round_s = 0;
  double waited_s = 0;
  double step_s = 0;
  double plain_step_s = 0;
  int64_t step_begin_ns = 0;  // trace_now_ns()
  int64_t step_end_ns = 0;
};

class RoundAccount {
 public:
  explicit RoundAccount(ServingMetrics& metrics) : metrics_(metrics) {}

  // A round that was decided alike.
  void note_round(const RoundPlan& plan, const RoundDecision& decision, const RoundClock& clock);
  void note_reply(const PackedReply& reply);
  // A round for which the draft was left idle.
  void note_rest() { metrics_.draft_rest_rounds.add(); }

  // Once a round: the metrics follow.
  void publish(const DraftCounters& counters);
  const SpeedupTotals& totals() const { return account_.totals(); }

 private:
  ServingMetrics& metrics_;
  SpeedupAccount account_;
  SpeedupTotals published_;
  DraftCounters counted_;
};

// One line for the log; empty when nothing was drafted.
std::string speedup_summary(const SpeedupTotals& totals);

}  // namespace outrider
