// What the coordinator notes of each round for those who look on: metrics, the speed-up account,
// and each sequence's verification in the trace. Rank 0's round thread only.
#pragma once

#include <string>

#include "http/api/serving_metrics.h"
#include "scheduler/batching/planner.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/pacing/speedup_account.h"
#include "scheduler/round.h"

namespace outrider {

class RoundAccount {
 public:
  explicit RoundAccount(ServingMetrics& metrics) : metrics_(metrics) {}

  // A round that was decided alike.
  void record_round(const RoundPlan& plan,
                    const RoundDecision& decision,
                    const RoundRecord& record);
  void record_reply(const PackedReply& reply);
  // A round for which the draft was left idle.
  void record_rest() { metrics_.draft_rest_rounds.add(); }

  // Once a round: the metrics follow.
  void publish(const DraftCounters& counters);
  const SpeedupTotals& totals() const { return account_.totals(); }

 private:
  ServingMetrics& metrics_;
  SpeedupAccount account_;
  SpeedupTotals published_;
  DraftCounters counted_;
};

// Each sequence's verification for the trace; the step's begin and end are trace_now_ns().
void trace_verifications(const RoundPlan& plan,
                         const RoundDecision& decision,
                         int64_t step_begin_ns,
                         int64_t step_end_ns);

// One line for the log; empty when nothing was drafted.
std::string speedup_summary(const SpeedupTotals& totals);

}  // namespace outrider
