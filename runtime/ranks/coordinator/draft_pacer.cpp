// See draft_pacer.h.
#include "runtime/ranks/coordinator/draft_pacer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/messages/round_trace.h"
#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

using Clock = DraftClient::Clock;

constexpr int kMostLooks = 4;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Until something was measured.
int32_t blind_draft_len() { return static_cast<int32_t>(pacing.blind_draft_len); }

}  // namespace

DraftPacer::DraftPacer(const Parts& parts)
    : world_(parts.world),
      planner_(parts.planner),
      account_(parts.account),
      was_up_(parts.layout.has_draft),
      speculation_({.longest_draft_len = parts.config.num_speculative_tokens,
                    .has_worker = parts.layout.has_draft || parts.server != nullptr,
                    .drafts_async = parts.drafts_async}),
      chooses_(parts.chooses_draft_len && parts.patience_s == 0),
      has_drafts_(parts.config.draft_method != DraftMethod::kNone) {
  if (parts.layout.has_draft || parts.server != nullptr) make_client(parts);
  if (chooses_ && has_drafts_)
    planner_.set_draft_len(std::min(blind_draft_len(), parts.config.num_speculative_tokens));
  planner_.set_draft_available(parts.layout.has_draft);
}

void DraftPacer::make_client(const Parts& parts) {
  std::unique_ptr<DraftLink> link;
  if (parts.layout.has_draft)
    link = std::make_unique<RankDraftLink>(parts.world, parts.layout.draft_rank());
  client_ = std::make_unique<DraftClient>(link.get(), parts.epoch, parts.patience_s);
  roster_ = std::make_unique<DraftRoster>(*client_, parts.server);
  if (link) roster_->add_rank(std::move(link), parts.layout.draft_rank(), parts.epoch);
}

DraftState DraftPacer::state() const {
  if (!client_) return DraftState::kNone;
  return was_up_ ? DraftState::kUp : DraftState::kDown;
}

bool DraftPacer::wait_for_blocks(double longest_s) {
  if (news_) {
    choose(true);
    if (choice_.wait) tell(true);
  }
  if (!client_ || !choice_.wait) return false;
  hear();
  if (news_) choose(true);
  if (!choice_.wait) return false;
  // Each accepted token saves the target a round; waiting longer than that cannot pay.
  const double worth_s = plain_round_s_ * std::max(1.0, accepted_per_block_);
  const double expected_s = chooses_ ? choice_.wait_s : 0;
  // A wait in vain makes the next one's expectation longer: so this has an end as well, and no
  // worth. Who is known to answer later has the client's deadline.
  const double least_s = std::min(pacing.outlier * expected_s, DraftClient::kMaxWaitS);
  const Clock::time_point earliest_end = Clock::now() + duration_of(least_s);
  const Clock::time_point pause_at = Clock::now() + duration_of(longest_s);
  const TraceSpan span(TraceKind::kWaitForDraft);
  bool in_time = true;
  bool goes_on = false;
  Backoff backoff;
  while (choice_.wait && !goes_on && state() == DraftState::kUp) {
    const Clock::time_point deadline = std::max(client_->deadline(worth_s), earliest_end);
    in_time = Clock::now() < deadline;
    if (in_time) {
      backoff.end_at(std::min({deadline, look_again_, pause_at}));
      pause(backoff);
      hear();
    }
    if (!in_time || news_ || Clock::now() >= look_again_) choose(in_time);
    goes_on = in_time && choice_.wait && Clock::now() >= pause_at;
  }
  waited_s_ += backoff.waited_s();
  if (goes_on) return true;
  if (state() == DraftState::kUp) client_->record_wait(in_time && client_->has_tokens());
  return false;
}

bool DraftPacer::listen_until(Clock::time_point end) {
  if (!client_) {
    JobClock::sleep_until(end);
    return true;
  }
  end -= duration_of(1e-6 * pacing.wake_before_end_us);
  if (Clock::now() >= end) return false;
  Backoff backoff(std::chrono::microseconds{0});  // no reason to poll without a pause
  backoff.end_at(end);
  while (Clock::now() < end) {
    pause(backoff);
    hear();
  }
  return true;
}

void DraftPacer::pause(Backoff& backoff) {
  const DraftLink* const link = client_->link();
  world_.pause_watching(backoff, link != nullptr ? link->descriptor() : -1);
}

// A look that finds nothing may take in the half of a message: so until two find nothing.
void DraftPacer::catch_up() {
  int num_empty = 0;
  for (int look = 0; client_ && look < kMostLooks && num_empty < 2; ++look)
    num_empty = hear() ? 0 : num_empty + 1;
}

bool DraftPacer::hear() {
  if (!client_) return false;
  const auto now = Clock::now();
  const std::vector<PackedReply> replies = client_->receive(now);
  for (const PackedReply& reply : replies) take_blocks(reply, now);
  roster_->look(now);
  follow_state(now);
  return !replies.empty();
}

// Whoever begins to draft, or was away, is told everything: the planner hears that it was away.
void DraftPacer::follow_state(Clock::time_point now) {
  const bool is_up = client_->update(now) != DraftClient::State::kDown;
  const uint64_t num_known = std::exchange(num_lives_, client_->num_lives());
  const bool is_new = num_lives_ != num_known;
  if (is_up == was_up_ && (!is_new || !is_up)) return;
  was_up_ = is_up;
  if (!is_up) {
    log_warning("the draft worker ({}) does not answer: going on without it", roster_->name());
  } else if (is_new) {
    log_info("the draft worker ({}) drafts from here on", roster_->name());
  } else {
    log_info("the draft worker ({}) answers again", roster_->name());
  }
  planner_.set_draft_available(false);
  planner_.set_draft_available(is_up);
  if (is_up) client_->forget_all();
  news_ = true;
}

void DraftPacer::take_blocks(const PackedReply& reply, Clock::time_point now) {
  account_.record_reply(reply);
  trace_reply_in(reply);
  const double step_s = 1e-6 * static_cast<double>(reply.step_time_us);
  const bool awaited = client_->is_waited_for() && step_s <= client_->asked_s(now);
  speculation_.record_draft_work(reply.num_steps, reply.num_rows, step_s, awaited);
  size_t num_tokens = 0;
  for (const PackedBlock& block : reply.blocks) {
    const bool is_awaited = planner_.awaits_tokens(block.sequence_id);
    if (!planner_.offer(block)) continue;
    news_ = news_ || is_awaited;
    num_tokens = std::max(num_tokens, block.tokens.size());
  }
  if (!client_->is_waited_for() || num_tokens == 0) return;
  // Who does not draft asynchronously sends blocks when they are whole.
  if (!client_->has_tokens()) record_first_tokens(now, num_tokens);
  client_->record_tokens(now);
}

void DraftPacer::record_first_tokens(Clock::time_point now, size_t num_tokens) {
  speculation_.record_first_tokens(client_->asked_s(now),
                                   static_cast<int32_t>(choice_.sequences.size()),
                                   static_cast<double>(num_tokens));
}

void DraftPacer::tell_begun() {
  if (!client_) return;
  const bool in_vain = client_->is_waited_for() && !client_->has_tokens() && waited_s_ > 0;
  if (in_vain) record_first_tokens(Clock::now(), 1);
  tell(false);
  client_->end_wait();
  waited_s_ = 0;
}

void DraftPacer::settle(RoundRecord& record) {
  record_round(record);
  choose(true);
  if (!client_) return;
  // A wait that is skipped counts as one.
  if (client_->skips_wait() && planner_.wants_draft()) client_->record_wait(false);
  // Of sequences that draft asynchronously there is nothing to say before the next round has begun.
  if (choice_.wait || any_in_one_piece_) tell(choice_.wait);
}

void DraftPacer::record_idle() {
  hear();
  round_end_ = Clock::now();
}

void DraftPacer::tell(bool asks) {
  if (!client_ || client_->is_congested()) return;
  const TraceSpan span(TraceKind::kSendDraftRequest);
  const auto now = Clock::now();
  DraftRequest request = planner_.take_draft_request(asks);
  was_told_ = was_told_ || !request.commits.empty();
  client_->send(std::move(request), now);
}

void DraftPacer::choose(bool may_wait) {
  news_ = false;
  if (!has_drafts_ || (!chooses_ && !client_)) return;
  const auto now = Clock::now();
  RoundState state = planner_.draft_state();
  if (!chooses_) state.num_running = 0;
  state.may_wait = may_wait && client_ && !client_->skips_wait();
  any_in_one_piece_ = false;
  for (SequenceState& one : state.sequences) {
    any_in_one_piece_ = any_in_one_piece_ || one.in_one_piece;
    one.fixed = one.fixed || !chooses_;
    if (client_ && client_->is_waited_for()) one.waited_s = client_->silent_s(now);
  }
  choice_ = speculation_.choose(state);
  look_again_ =
      now + duration_of(std::max(1e-6 * pacing.shortest_look_us, pacing.overdue * choice_.wait_s));
  planner_.set_draft_lens(choice_.sequences);
  if (!chooses_) return;
  int32_t longest = choice_.sequences.empty() && choice_.draft_works ? blind_draft_len() : 0;
  for (const SequenceChoice& one : choice_.sequences) longest = std::max(longest, one.wanted_len);
  planner_.set_draft_len(longest);
}

void DraftPacer::record_round(RoundRecord& record) {
  // A draft that is away, or has nothing to do, takes nothing from the target.
  const bool drafted = was_told_ || (was_up_ && record.num_drafts > 0);
  record.draft_worked = choice_.draft_works && (!client_ || drafted);
  was_told_ = false;
  if (client_ && !choice_.draft_works) account_.record_rest();
  const DraftNews news = planner_.take_draft_news();
  for (const DraftResult& result : news.results) {
    speculation_.record_draft(result);
    if (result.num_drafted > 0 && !result.judged_backup())
      update_average(&accepted_per_block_, result.num_accepted);
  }
  for (uint64_t id : news.ended) speculation_.forget(id);
  if (record.num_drafts == 0 && !record.reads_prompt)
    update_average(&plain_round_s_, record.step_s);
  const auto now = Clock::now();
  record.total_s = seconds_of(now - round_end_);
  round_end_ = now;
  speculation_.record_round(record);
  record.plain_step_s = speculation_.plain_step_s(record);
}

}  // namespace outrider
