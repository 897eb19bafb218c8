// See round.h.
#include "scheduler/round.h"

#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

// Over a running state: every decided number changes the result.
uint64_t mixed(uint64_t state, uint64_t value) {
  return mix64(state ^ (value + 0x9E3779B97F4A7C15ull + (state << 6) + (state >> 2)));
}

}  // namespace

int32_t num_rows_of(const SequencePlan& plan) {
  return plan.num_committed_rows + static_cast<int32_t>(plan.draft.size());
}

int32_t num_rows_of(std::span<const SequencePlan> plans) {
  int32_t num_rows = 0;
  for (const SequencePlan& plan : plans) num_rows += num_rows_of(plan);
  return num_rows;
}

bool bonus_draft_accepted(const SequencePlan& plan, const SequenceDecision& decision) {
  return plan.bonus_draft && !decision.failed &&
         decision.num_accepted == static_cast<int32_t>(plan.draft.size()) &&
         decision.next_token == plan.bonus_draft->token;
}

uint64_t digest(uint64_t round, const RoundDecision& decision) {
  uint64_t state = mixed(0, round);
  for (const SequenceDecision& sequence : decision.sequences) {
    state = mixed(state, sequence.sequence_id);
    state = mixed(state, static_cast<uint64_t>(sequence.num_accepted));
    state = mixed(state, static_cast<uint64_t>(static_cast<int64_t>(sequence.next_token)));
    state = mixed(state, sequence.failed ? 1 : 0);
  }
  return state;
}

}  // namespace outrider
