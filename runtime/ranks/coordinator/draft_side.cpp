// See draft_side.h.
#include "runtime/ranks/coordinator/draft_side.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/trace.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/messages/round_trace.h"

namespace outrider {
namespace {

using Clock = DraftLink::Clock;

constexpr double kAverageWeight = 0.1;
// Until something was measured.
constexpr int32_t kFirstDraftLen = 4;
// A wait that was to take so long is thought over after this many times as long.
constexpr double kOverdue = 1.5;
constexpr double kShortestLookS = 50e-6;
// Nor does a round give a block up before this many times as long: what the link knows of answers
// may be of shorter blocks.
constexpr double kOverdueForGood = 3;
// Who listens during a step is back so long before it ends, and has no reason to poll meanwhile.
constexpr std::chrono::microseconds kBackBefore{150};
constexpr std::chrono::microseconds kNotHot{0};
constexpr int kMostLooks = 4;

void update_average(double* average, double value) {
  *average = *average == 0 ? value : (1 - kAverageWeight) * *average + kAverageWeight * value;
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

DraftSide::DraftSide(const Parts& parts)
    : world_(parts.world),
      planner_(parts.planner),
      account_(parts.account),
      draft_rank_(parts.layout.has_draft ? parts.layout.draft_rank() : -1),
      speculation_({.longest_draft_len = parts.config.num_speculative_tokens,
                    .has_worker = parts.layout.has_draft,
                    .drafts_async = parts.drafts_async}),
      chooses_(parts.chooses_draft_len && parts.patience_s == 0),
      has_drafts_(parts.config.draft_method != DraftMethod::kNone) {
  if (parts.layout.has_draft) {
    link_ = std::make_unique<DraftLink>(parts.world, draft_rank_, parts.epoch, parts.patience_s);
    state_ = DraftState::kUp;
  }
  if (chooses_ && has_drafts_)
    planner_.set_draft_len(std::min(kFirstDraftLen, parts.config.num_speculative_tokens));
  planner_.set_draft_available(parts.layout.has_draft);
}

double DraftSide::wait_for_blocks() {
  waited_s_ = 0;
  if (!link_ || !choice_.wait) return 0;
  hear();
  if (news_) choose(true);
  if (!choice_.wait) return 0;
  // Each accepted token saves the target a round; waiting longer than that cannot pay.
  const double worth_s = plain_round_s_ * std::max(1.0, accepted_per_block_);
  const double expected_s = chooses_ ? choice_.wait_s : 0;
  const Clock::time_point earliest_end = Clock::now() + duration_of(kOverdueForGood * expected_s);
  const TraceSpan span(TraceKind::kWaitForDraft);
  bool in_time = true;
  Backoff backoff;
  while (choice_.wait && state_ == DraftState::kUp) {
    const Clock::time_point deadline = std::max(link_->deadline(worth_s), earliest_end);
    in_time = Clock::now() < deadline;
    if (in_time) {
      backoff.end_at(std::min(deadline, look_again_));
      world_.pause(backoff);
      hear();
    }
    if (!in_time || news_ || Clock::now() >= look_again_) choose(in_time);
  }
  if (state_ == DraftState::kUp) link_->record_wait(in_time && tokens_at_.has_value());
  waited_s_ = backoff.waited_s();
  return waited_s_;
}

bool DraftSide::listen_until(Clock::time_point end) {
  if (!link_) {
    JobClock::sleep_until(end);
    return true;
  }
  if (Clock::now() + kBackBefore >= end) return false;
  Backoff backoff(kNotHot);
  backoff.end_at(end - kBackBefore);
  while (Clock::now() + kBackBefore < end) {
    world_.pause(backoff);
    hear();
  }
  return true;
}

// A look that finds nothing may take in the half of a message: so until two find nothing.
void DraftSide::catch_up() {
  int num_empty = 0;
  for (int look = 0; link_ && look < kMostLooks && num_empty < 2; ++look)
    num_empty = hear() ? 0 : num_empty + 1;
}

bool DraftSide::hear() {
  if (!link_) return false;
  const auto now = Clock::now();
  std::vector<PackedReply> replies = link_->receive(now);
  for (PackedReply& reply : replies) take_blocks(reply, now);
  follow_state(now);
  return !replies.empty();
}

void DraftSide::follow_state(Clock::time_point now) {
  const DraftState state = link_->update_state(now);
  if (state == state_) return;
  state_ = state;
  if (state == DraftState::kDown) {
    log_warning("the draft worker (rank {}) does not answer: going on without it", draft_rank_);
  } else {
    log_info("the draft worker answers again");
  }
  planner_.set_draft_available(state == DraftState::kUp);
  news_ = true;
}

void DraftSide::take_blocks(PackedReply& reply, Clock::time_point now) {
  account_.record_reply(reply);
  trace_reply_in(reply);
  const double step_s = 1e-6 * static_cast<double>(reply.step_time_us);
  const bool awaited = is_asking_ && step_s <= seconds_between(asked_at_, now);
  speculation_.record_draft_work(reply.num_steps, reply.num_rows, step_s, awaited);
  size_t num_tokens = 0;
  for (PackedBlock& block : reply.blocks) {
    const size_t size = block.tokens.size();
    const bool is_awaited = planner_.awaits_tokens(block.sequence_id);
    if (!planner_.offer(std::move(block))) continue;
    news_ = news_ || is_awaited;
    num_tokens = std::max(num_tokens, size);
  }
  if (!is_asking_ || num_tokens == 0) return;
  // Who does not draft asynchronously sends blocks when they are whole.
  if (!tokens_at_) {
    speculation_.record_first_tokens(seconds_between(asked_at_, now),
                                     static_cast<int32_t>(choice_.sequences.size()),
                                     static_cast<double>(num_tokens));
  }
  tokens_at_ = now;
}

void DraftSide::tell_begun() {
  if (is_asking_ && !tokens_at_ && waited_s_ > 0) {
    speculation_.record_first_tokens(seconds_between(asked_at_, Clock::now()),
                                     static_cast<int32_t>(choice_.sequences.size()),
                                     1);
  }
  tell(false);
  is_asking_ = false;
}

void DraftSide::settle(RoundRecord& record) {
  record_round(record);
  tokens_at_.reset();
  choose(true);
  if (!link_) return;
  // A wait that is skipped counts as one.
  if (link_->skips_wait() && planner_.wants_draft()) link_->record_wait(false);
  // Of sequences that draft asynchronously there is nothing to say before the next round has begun.
  if (choice_.wait || any_in_one_piece_) tell(choice_.wait);
}

void DraftSide::record_idle() {
  hear();
  round_end_ = Clock::now();
}

void DraftSide::tell(bool asks) {
  if (!link_) return;
  const TraceSpan span(TraceKind::kSendDraftRequest);
  const auto now = Clock::now();
  DraftRequest request = planner_.take_draft_request(asks);
  is_asking_ = std::any_of(request.commits.begin(),
                           request.commits.end(),
                           [](const DraftCommit& commit) { return commit.in_flight < 0; });
  if (is_asking_) asked_at_ = now;
  was_told_ = was_told_ || !request.commits.empty();
  link_->send(std::move(request), now);
}

void DraftSide::choose(bool may_wait) {
  news_ = false;
  if (!has_drafts_ || (!chooses_ && !link_)) return;
  const auto now = Clock::now();
  RoundState state = planner_.draft_state();
  state.may_wait = may_wait && link_ && !link_->skips_wait();
  any_in_one_piece_ = false;
  for (SequenceState& one : state.sequences) {
    any_in_one_piece_ = any_in_one_piece_ || one.in_one_piece;
    one.fixed = one.fixed || !chooses_;
    if (is_asking_) one.waited_s = seconds_between(tokens_at_.value_or(asked_at_), now);
  }
  choice_ = speculation_.choose(state);
  look_again_ = now + duration_of(std::max(kShortestLookS, kOverdue * choice_.wait_s));
  planner_.set_draft_lens(choice_.sequences);
  if (!chooses_) return;
  int32_t longest = choice_.sequences.empty() ? kFirstDraftLen : 0;
  for (const SequenceChoice& one : choice_.sequences) longest = std::max(longest, one.wanted_len);
  planner_.set_draft_len(longest);
}

void DraftSide::record_round(RoundRecord& record) {
  // A draft that is away, or has nothing to do, takes nothing from the target.
  record.draft_worked = choice_.draft_works && (!link_ || was_told_ || record.num_drafts > 0);
  was_told_ = false;
  if (link_ && !choice_.draft_works) account_.record_rest();
  const DraftNews news = planner_.take_draft_news();
  for (const DraftResult& verdict : news.results) {
    if (verdict.num_drafted > 0) {
      speculation_.record_result(verdict.sequence_id, verdict.num_drafted, verdict.num_accepted);
      update_average(&accepted_per_block_, verdict.num_accepted);
    }
    if (verdict.counterfactual)
      speculation_.record_counterfactual(verdict.sequence_id, *verdict.counterfactual);
    if (verdict.num_prepared) {
      const bool hit = *verdict.num_prepared > 0;
      speculation_.record_lookup(verdict.all_accepted, hit, *verdict.num_prepared);
    }
  }
  for (uint64_t id : news.ended) speculation_.forget(id);
  if (record.num_drafts == 0 && !record.reads_prompt)
    update_average(&plain_round_s_, record.step_s);
  const auto now = Clock::now();
  record.total_s = seconds_between(round_end_, now);
  round_end_ = now;
  speculation_.record_round(record);
  record.plain_step_s = speculation_.plain_step_s(record);
}

}  // namespace outrider
