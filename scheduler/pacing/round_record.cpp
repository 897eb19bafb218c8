// See round_record.h.
#include "scheduler/pacing/round_record.h"

#include <algorithm>

namespace outrider {

RoundRecord record_of(const RoundPlan& plan, const RoundDecision& decision) {
  RoundRecord record;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& planned = plan.sequences[i];
    const SequenceDecision& decided = decision.sequences[i];
    const int64_t rows = num_rows_of(planned);
    record.load.num_rows += static_cast<int32_t>(rows);
    record.load.kv_positions += planned.first_position + rows;
    record.load.row_positions += rows * planned.first_position + rows * (rows + 1) / 2;
    record.reads_prompt = record.reads_prompt || planned.num_committed_rows > 1;
    if (decided.failed || decided.next_token < 0) continue;
    const auto num_drafted = static_cast<int32_t>(planned.draft.size());
    const bool is_ready = planned.source != BlockSource::kDraftModel && num_drafted > 0;
    ++record.num_sequences;
    record.num_tokens += decided.num_accepted + 1;
    record.num_drafts += num_drafted > 0 ? 1 : 0;
    record.num_ready += is_ready ? 1 : 0;
    record.num_drafted += num_drafted;
    record.num_examined += std::min(num_drafted, decided.num_accepted + 1);
    record.num_accepted += decided.num_accepted;
  }
  return record;
}

}  // namespace outrider
