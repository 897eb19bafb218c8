// See draft_side.h.
#include "runtime/ranks/draft_side.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/trace.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/round_trace.h"

namespace outrider {
namespace {

using Clock = DraftLink::Clock;

constexpr double kAverageWeight = 0.1;
constexpr int32_t kLongestAdapted = 4;

void update_average(double* average, double value) {
  *average = *average == 0 ? value : (1 - kAverageWeight) * *average + kAverageWeight * value;
}

}  // namespace

DraftSide::DraftSide(const Parts& parts)
    : world_(parts.world),
      planner_(parts.planner),
      account_(parts.account),
      draft_rank_(parts.layout.has_draft ? parts.layout.draft_rank() : -1),
      draft_length_(parts.adaptive_draft_len
                        ? std::min(kLongestAdapted, parts.config.num_speculative_tokens)
                        : parts.config.num_speculative_tokens),
      is_patient_(parts.patience_s > 0),
      is_adaptive_(parts.adaptive_draft_len && !is_patient_ &&
                   parts.config.draft_method != DraftMethod::kNone),
      draft_len_(draft_length_.choose(1)) {
  if (parts.layout.has_draft) {
    link_ = std::make_unique<DraftLink>(parts.world, draft_rank_, parts.epoch, parts.patience_s);
    state_ = DraftState::kUp;
  }
  if (is_adaptive_) planner_.set_draft_len(draft_len_);
  planner_.set_draft_available(parts.layout.has_draft);
}

double DraftSide::wait_for_blocks() {
  if (!link_) return 0;
  hear();
  if (!waits_ || state_ != DraftState::kUp || !planner_.wants_draft()) return 0;
  // Each accepted token saves the target a round; waiting longer than that cannot pay.
  const double worth_s = plain_round_s_ * std::max(1.0, accepted_per_block_);
  const TraceSpan span(TraceKind::kWaitForDraft);
  Backoff backoff;
  while (planner_.wants_draft()) {
    const Clock::time_point deadline = link_->deadline(worth_s);
    if (Clock::now() >= deadline) break;
    backoff.end_at(deadline);
    world_.pause(backoff);
    hear();
    if (state_ != DraftState::kUp) return backoff.waited_s();
  }
  const bool complete = !planner_.wants_draft();
  link_->note_wait(complete);
  if (complete) draft_length_.note_wait(draft_len_, backoff.waited_s());
  return backoff.waited_s();
}

void DraftSide::hear() {
  if (!link_) return;
  const auto now = Clock::now();
  for (DraftReply& reply : link_->receive(now)) {
    account_.note_reply(reply);
    trace_reply_in(reply);
    for (DraftBlock& block : reply.blocks) planner_.offer(std::move(block));
  }
  const DraftState state = link_->update_state(now);
  if (state == state_) return;
  state_ = state;
  if (state == DraftState::kDown) {
    log_warning("the draft worker (rank {}) does not answer: going on without it", draft_rank_);
  } else {
    log_info("the draft worker answers again");
  }
  planner_.set_draft_available(state == DraftState::kUp);
}

void DraftSide::tell_begun() { tell(false); }

void DraftSide::settle() {
  choose_draft_len();
  if (!link_) return;
  hear();
  waits_ = pays_to_wait(planner_.draft_need());
  tell(waits_ && !link_->skips_wait());
}

void DraftSide::tell(bool asks) {
  if (!link_) return;
  const TraceSpan span(TraceKind::kTellDraft);
  link_->send(planner_.take_draft_request(asks), Clock::now());
}

// A round that goes at once still lets the draft ride ahead from what it decides; so for the few
// whose blocks are missing the others do not wait.
bool DraftSide::pays_to_wait(const DraftNeed& need) const {
  if (need.num_incomplete == 0) return false;
  if (is_patient_ || need.num_synchronous > 0) return true;
  return 2 * (is_adaptive_ ? need.num_empty : need.num_incomplete) > need.num_sequences;
}

void DraftSide::choose_draft_len() {
  if (!is_adaptive_) return;
  draft_len_ = draft_length_.choose(planner_.counters().num_running);
  planner_.set_draft_len(draft_len_);
}

void DraftSide::note_round(const RoundPlan& plan, const RoundDecision& decision, double compute_s) {
  int32_t num_rows = 0;
  bool any_draft = false;
  bool any_prefill = false;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& planned = plan.sequences[i];
    const auto draft_len = static_cast<int32_t>(planned.draft.size());
    any_prefill = any_prefill || planned.num_committed_rows > 1;
    num_rows += planned.num_committed_rows + draft_len;
    if (draft_len == 0) continue;
    any_draft = true;
    update_average(&accepted_per_block_, decision.sequences[i].num_accepted);
    draft_length_.note_verdict(draft_len, decision.sequences[i].num_accepted);
  }
  if (any_prefill) return;
  draft_length_.note_round(num_rows, compute_s);
  if (!any_draft) update_average(&plain_round_s_, compute_s);
}

}  // namespace outrider
