// See round_account.h.
#include "runtime/ranks/coordinator/round_account.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/trace.h"

namespace outrider {

void RoundAccount::note_round(const RoundPlan& plan,
                              const RoundDecision& decision,
                              const RoundClock& clock) {
  SpeedupRound round{.round_s = clock.round_s,
                     .waited_s = clock.waited_s,
                     .step_s = clock.step_s,
                     .plain_step_s = clock.plain_step_s,
                     .num_rows = num_rows_of(plan.sequences)};
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& planned = plan.sequences[i];
    const SequenceDecision& decided = decision.sequences[i];
    round.reads_prompt = round.reads_prompt || planned.num_committed_rows > 1;
    if (decided.failed || decided.next_token < 0) continue;
    const auto num_drafted = static_cast<int32_t>(planned.draft.size());
    ++round.num_sequences;
    round.num_tokens += decided.num_accepted + 1;
    round.num_drafts += num_drafted > 0 ? 1 : 0;
    round.num_ready +=
        planned.source == BlockSource::kAtHand || planned.source == BlockSource::kOwn ? 1 : 0;
    round.num_drafted += num_drafted;
    round.num_examined += std::min(num_drafted, decided.num_accepted + 1);
    round.num_accepted += decided.num_accepted;
    trace_verdict(decided.sequence_id,
                  {clock.step_begin_ns, clock.step_end_ns},
                  {.round = planned.round,
                   .num_drafted = num_drafted,
                   .num_accepted = decided.num_accepted,
                   .num_rows = round.num_rows,
                   .source = planned.source,
                   .had_proposal = planned.proposal.has_value()});
  }
  account_.note_round(round);
}

void RoundAccount::note_reply(const PackedReply& reply) {
  account_.note_draft(reply.num_steps,
                      1e-6 * static_cast<double>(reply.step_time_us),
                      1e-6 * static_cast<double>(reply.idle_us));
}

void RoundAccount::publish(const DraftCounters& counters) {
  account_.note_lookups(static_cast<int64_t>(counters.num_lookups - counted_.num_lookups),
                        static_cast<int64_t>(counters.num_hits - counted_.num_hits));
  metrics_.draft_blocks_stale.add(
      static_cast<double>(counters.num_stale_blocks - counted_.num_stale_blocks));
  metrics_.prepared_tokens.add(
      static_cast<double>(counters.num_prepared_tokens - counted_.num_prepared_tokens));
  metrics_.prepared_tokens_dropped.add(
      static_cast<double>(counters.num_prepared_dropped - counted_.num_prepared_dropped));
  counted_ = counters;
  const SpeedupTotals& totals = account_.totals();
  const SpeedupTotals news = totals - published_;
  published_ = totals;
  metrics_.target_wait_seconds.add(news.waited_s);
  metrics_.target_busy_seconds.add(news.step_s);
  metrics_.draft_busy_seconds.add(news.draft_busy_s);
  metrics_.draft_idle_seconds.add(news.draft_idle_s);
  metrics_.verified_rows.add(static_cast<double>(news.num_rows));
  metrics_.wasted_rows.add(static_cast<double>(news.num_wasted_rows));
  metrics_.outcome_cache_queries.add(static_cast<double>(news.num_lookups));
  metrics_.outcome_cache_hits.add(static_cast<double>(news.num_hits));
  metrics_.compared_seconds.add(news.compared_s);
  metrics_.compared_tokens.add(static_cast<double>(news.num_tokens));
  metrics_.without_speculation_seconds.add(news.plain_s);
  metrics_.target_bubble_ratio.set(totals.bubble());
  metrics_.outcome_cache_hit_rate.set(totals.hit_rate());
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
