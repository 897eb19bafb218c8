// One round as figures: filled once, from its plan, its decision and the coordinator's times, and
// read by all who learn from rounds or count them (pacing, the speed-up account, metrics,
// benchmarks). Plain values.
#pragma once

#include <cstdint>

#include "scheduler/pacing/step_times.h"
#include "scheduler/round.h"

namespace outrider {

struct RoundRecord {
  StepLoad load;
  bool reads_prompt = false;  // some sequence had more than one committed row
  bool draft_worked = false;  // the draft was told to work while it ran

  int32_t num_sequences = 0;  // that sampled
  int32_t num_tokens = 0;     // that came out
  int32_t num_drafts = 0;     // sequences with draft tokens
  int32_t num_ready = 0;      // of these: the draft was at hand when the round before ended
  int32_t num_drafted = 0;    // draft tokens judged
  int32_t num_examined = 0;   // of these: all before it in its draft were accepted
  int32_t num_accepted = 0;   // of these: accepted

  double plain_step_s = 0;  // estimate: one row for each sequence, the draft idle; 0 = not known
  double waited_s = 0;      // the targets were idle, waiting for the draft
  double step_s = 0;        // forward pass, verification, agreement
  double round_s = 0;       // the wait, the step, and what was done before and after it
  double total_s = 0;       // since the end of the round before
};

// All but the times and what the draft did.
RoundRecord record_of(const RoundPlan& plan, const RoundDecision& decision);

}  // namespace outrider
