// See round_account.h.
#include "runtime/ranks/coordinator/round_account.h"

#include <fmt/format.h>

#include "runtime/base/telemetry/trace.h"

namespace outrider {

void RoundAccount::record_round(const RoundPlan& plan,
                                const RoundDecision& decision,
                                const RoundRecord& record) {
  account_.record_round(record);
  metrics_.rounds.add();
  metrics_.iteration_tokens.observe(record.load.num_rows);
  metrics_.round_forward_seconds.observe(record.step_s);
  metrics_.round_seconds.observe(record.round_s);
  metrics_.spec_decode_num_drafts.add(record.num_drafts);
  metrics_.spec_decode_num_draft_tokens.add(record.num_drafted);
  metrics_.spec_decode_num_accepted_tokens.add(record.num_accepted);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceDecision& decided = decision.sequences[i];
    metrics_.count_draft(
        plan.sequences[i].source, plan.sequences[i].draft.size(), decided.num_accepted);
    if (decided.failed && !decided.no_token_allowed) metrics_.logits_not_finite.add();
    for (int32_t j = 0; j < decided.num_accepted; ++j) {
      metrics_.accepted_tokens_at(static_cast<size_t>(j)).add();
    }
  }
}

void trace_verifications(const RoundPlan& plan,
                         const RoundDecision& decision,
                         int64_t step_begin_ns,
                         int64_t step_end_ns) {
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& planned = plan.sequences[i];
    const SequenceDecision& decided = decision.sequences[i];
    if (decided.failed || decided.next_token < 0) continue;
    trace_sequence(TraceKind::kVerification,
                   decided.sequence_id,
                   {step_begin_ns, step_end_ns},
                   {planned.round,
                    static_cast<int64_t>(planned.draft.size()),
                    decided.num_accepted,
                    num_rows_of(plan.sequences),
                    static_cast<int64_t>(planned.source),
                    planned.bonus_draft.has_value() ? 1 : 0});
  }
}

void RoundAccount::record_reply(const PackedReply& reply) {
  account_.record_draft(reply.num_steps,
                        1e-6 * static_cast<double>(reply.step_time_us),
                        1e-6 * static_cast<double>(reply.idle_us));
}

void RoundAccount::publish(const DraftCounters& counters) {
  account_.record_lookups(static_cast<int64_t>(counters.num_lookups - counted_.num_lookups),
                          static_cast<int64_t>(counters.num_hits - counted_.num_hits));
  metrics_.draft_blocks_stale.add(
      static_cast<double>(counters.num_stale_blocks - counted_.num_stale_blocks));
  metrics_.prepared_tokens.add(
      static_cast<double>(counters.num_prepared_tokens - counted_.num_prepared_tokens));
  metrics_.prepared_tokens_dropped.add(
      static_cast<double>(counters.num_prepared_dropped - counted_.num_prepared_dropped));
  counted_ = counters;
  const SpeedupTotals& totals = account_.totals();
  metrics_.target_wait_seconds.add(totals.waited_s - published_.waited_s);
  metrics_.target_busy_seconds.add(totals.step_s - published_.step_s);
  metrics_.draft_busy_seconds.add(totals.draft_busy_s - published_.draft_busy_s);
  metrics_.draft_idle_seconds.add(totals.draft_idle_s - published_.draft_idle_s);
  metrics_.verified_rows.add(static_cast<double>(totals.num_rows - published_.num_rows));
  metrics_.wasted_rows.add(
      static_cast<double>(totals.num_wasted_rows - published_.num_wasted_rows));
  metrics_.speculation_cache_queries.add(
      static_cast<double>(totals.num_lookups - published_.num_lookups));
  metrics_.speculation_cache_hits.add(static_cast<double>(totals.num_hits - published_.num_hits));
  metrics_.compared_seconds.add(totals.compared_s - published_.compared_s);
  metrics_.compared_tokens.add(static_cast<double>(totals.num_tokens - published_.num_tokens));
  metrics_.without_speculation_seconds.add(totals.plain_s - published_.plain_s);
  published_ = totals;
  metrics_.target_bubble_ratio.set(totals.bubble());
  metrics_.speculation_cache_hit_rate.set(totals.hit_rate());
  metrics_.acceptance.set(totals.acceptance());
  metrics_.draft_cost_ratio.set(totals.cost_ratio());
  metrics_.speedup_measured.set(totals.measured_speedup());
  metrics_.speedup_predicted.set(totals.predicted_speedup());
  metrics_.tokens_per_second_without_speculation.set(totals.plain_tokens_per_s());
}

std::string speedup_summary(const SpeedupTotals& totals) {
  if (totals.num_drafts == 0) return "";
  std::string text = fmt::format(
      "speculation: {:.2f}x of {:.1f} tokens/s without (predicted {:.2f}x; acceptance {:.3f}, "
      "draft length {:.1f}, cost ratio {:.3f}), targets waited {:.1f}% of the time, {} of {} "
      "verified rows wasted",
      totals.measured_speedup(),
      totals.plain_tokens_per_s(),
      totals.predicted_speedup(),
      totals.acceptance(),
      totals.mean_draft_len(),
      totals.cost_ratio(),
      100 * totals.bubble(),
      totals.num_wasted_rows,
      totals.num_rows);
  if (totals.num_lookups > 0) {
    text += fmt::format(", hit rate {:.3f}", totals.hit_rate());
  }
  return text;
}

}  // namespace outrider
