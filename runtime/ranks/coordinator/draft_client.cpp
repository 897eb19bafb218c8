// See draft_client.h.
#include "runtime/ranks/coordinator/draft_client.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/comm/waiting.h"
#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

// Bounds of faults, not of pacing: a healthy draft never meets them.
constexpr double kMinWaitS = 0.002;
constexpr double kDownAfterS = 0.3;
constexpr double kLongestDownAfterS = 10.0;
constexpr auto kLookInterval = std::chrono::seconds(1);  // at one that is down
constexpr double kGoodbyeS = 3.0;  // a healthy draft needs one forward pass at most
constexpr int kMissesBeforeSkipping = 3;
constexpr int kMostSkippedRounds = 256;
// More than this unsent means that nobody takes it: the draft is gone, and memory must not grow.
constexpr size_t kMaxUnsentBytes = 1 << 20;
constexpr size_t kMaxUnanswered = 64;
// A draft that floods costs a round no more than that.
constexpr int kMostFramesAtOnce = 256;

}  // namespace

DraftClient::DraftClient(DraftLink* link, uint32_t epoch, double patience_s)
    : link_(link),
      epoch_(epoch),
      patience_s_(patience_s),
      down_after_s_(first_down_after_s()),
      is_down_(link == nullptr) {}

double DraftClient::first_down_after_s() const { return std::max(kDownAfterS, patience_s_); }

void DraftClient::attach(DraftLink* link, uint32_t epoch) {
  link_ = link;
  begin_life(epoch);
  is_down_ = link == nullptr;
  if (link != nullptr) ++num_lives_;
}

// Whatever was asked, measured or thought of the life before says nothing of this one.
void DraftClient::begin_life(uint32_t epoch) {
  epoch_ = epoch;
  unanswered_.clear();
  waiting_since_.reset();
  end_wait();
  urgent_serial_ = 0;
  urgent_at_ = {};
  part_at_.reset();
  part_gap_s_ = answer_s_ = draft_step_s_ = 0;
  down_after_s_ = first_down_after_s();
  num_misses_in_row_ = num_rounds_to_skip_ = 0;
  is_down_ = is_gone_ = answered_since_miss_ = owes_forget_ = false;
  takes_over_ = true;
}

// What was asked before is not answered either.
void DraftClient::forget_all() {
  unanswered_.clear();
  waiting_since_.reset();
  owes_forget_ = true;
}

bool DraftClient::is_congested() const {
  return link_ != nullptr && link_->num_unsent_bytes() > kMaxUnsentBytes;
}

void DraftClient::post(FrameKind kind) { link_->post(encode_frame(kind, epoch_)); }

void DraftClient::send(DraftRequest request, Clock::time_point now) {
  if (request.is_empty() || link_ == nullptr || is_congested()) return;
  if (std::exchange(owes_forget_, false)) post(FrameKind::kForget);
  request.serial = next_serial_++;
  trace_flow_out(request_arrow(request.serial));
  forget(request.closes);
  Asked asked{request.serial, now, false, {}};
  asked.sequence_ids.reserve(request.commits.size());
  for (const DraftCommit& commit : request.commits) {
    if (commit.draft_len == 0) continue;
    asked.sequence_ids.push_back(commit.sequence_id);
    asked.is_urgent = asked.is_urgent || commit.in_flight < 0;
  }
  if (asked.is_urgent) {
    urgent_serial_ = request.serial;
    asked_at_ = urgent_at_ = now;
    tokens_at_.reset();
    part_at_.reset();
  }
  if (!asked.sequence_ids.empty()) {
    unanswered_.push_back(std::move(asked));
    if (unanswered_.size() > kMaxUnanswered) unanswered_.pop_front();
    if (!waiting_since_) waiting_since_ = now;
  }
  Bytes frame =
      encode_frame({.kind = FrameKind::kRequest, .epoch = epoch_, .payload = encode(request)});
  num_sent_bytes_ += frame.size();
  link_->post(std::move(frame));
}

// Nobody answers for a sequence that is over.
void DraftClient::forget(const std::vector<uint64_t>& closed) {
  if (closed.empty()) return;
  for (Asked& asked : unanswered_) {
    std::erase_if(asked.sequence_ids, [&](uint64_t id) {
      return std::find(closed.begin(), closed.end(), id) != closed.end();
    });
  }
  std::erase_if(unanswered_, [](const Asked& asked) { return asked.sequence_ids.empty(); });
  if (unanswered_.empty()) waiting_since_.reset();
}

std::vector<PackedReply> DraftClient::receive(Clock::time_point now) {
  std::vector<PackedReply> replies;
  if (link_ == nullptr) return replies;
  for (int i = 0; i < kMostFramesAtOnce; ++i) {
    const auto bytes = link_->poll();
    if (!bytes) break;
    num_received_bytes_ += bytes->size();
    Frame frame;
    if (!decode_frame(*bytes, &frame)) {
      ++num_dropped_frames_;
    } else if (frame.kind == FrameKind::kHello && frame.epoch > epoch_) {
      begin_life(frame.epoch);
      ++num_lives_;
    } else if (frame.epoch != epoch_) {
      ++num_dropped_frames_;
    } else {
      take_frame(frame, now, &replies);
    }
  }
  is_down_ = is_down_ || link_->is_closed();
  return replies;
}

void DraftClient::take_frame(Frame& frame,
                             Clock::time_point now,
                             std::vector<PackedReply>* replies) {
  if (frame.kind == FrameKind::kGone) {
    is_down_ = is_gone_ = true;
    return;
  }
  if (is_gone_) return;
  if (is_down_ && waiting_since_) {
    down_after_s_ = std::min(kLongestDownAfterS,
                             std::max(down_after_s_, 2 * seconds_of(now - *waiting_since_)));
  }
  waiting_since_ = unanswered_.empty() ? std::nullopt : std::optional(now);
  is_down_ = false;
  if (frame.kind != FrameKind::kReply) return;
  try {
    replies->push_back(decode_draft_reply(std::move(frame.payload)));
    record_answer(replies->back(), now);
  } catch (const Error&) {
    ++num_dropped_frames_;
  }
}

void DraftClient::record_answer(const PackedReply& reply, Clock::time_point now) {
  if (reply.num_steps > 0) {
    update_average(&draft_step_s_,
                   1e-6 * static_cast<double>(reply.step_time_us) / reply.num_steps);
  }
  if (reply.serial == urgent_serial_ && !reply.blocks.empty()) {
    if (part_at_) update_average(&part_gap_s_, seconds_of(now - *part_at_));
    part_at_ = now;
  }
  // A late answer counts too: it is how the usual answer time grows to what it really is.
  while (!unanswered_.empty() && unanswered_.front().serial <= reply.serial) {
    if (unanswered_.front().serial == reply.serial && unanswered_.front().is_urgent) {
      const double answer_s = seconds_of(now - unanswered_.front().sent_at);
      update_average(&answer_s_, answer_s);
      answered_since_miss_ = num_misses_in_row_ > 0;
      if (answer_s < kMaxWaitS) num_rounds_to_skip_ = 0;
    }
    unanswered_.pop_front();
  }
  if (unanswered_.empty()) waiting_since_.reset();
}

bool DraftClient::shut_down() {
  if (link_ == nullptr) return true;
  post(FrameKind::kShutdown);
  for (Backoff backoff; backoff.waited_s() < kGoodbyeS; backoff.pause()) {
    while (auto bytes = link_->poll()) {
      Frame frame;
      if (decode_frame(*bytes, epoch_, &frame) && frame.kind == FrameKind::kShutdown) return true;
    }
  }
  return false;
}

DraftClient::Clock::time_point DraftClient::deadline(double worth_s) const {
  const auto after = [](Clock::time_point begin, double wait_s) {
    return begin +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_s));
  };
  const double longest_s = takes_over_ ? kMaxWaitS : std::max(kMaxWaitS, worth_s);
  const auto usual = [&](double average_s) {
    return average_s == 0 ? longest_s : std::clamp(2 * average_s, kMinWaitS, longest_s);
  };
  if (num_rounds_to_skip_ > 0) return after(urgent_at_, patience_s_);
  Clock::time_point until = after(urgent_at_, std::max(usual(answer_s_), patience_s_));
  if (part_at_) {
    const Clock::time_point latest = after(urgent_at_, longest_s);
    until = std::max(until, std::min(after(*part_at_, usual(part_gap_s_)), latest));
  }
  return until;
}

void DraftClient::record_wait(bool complete) {
  if (complete) {
    num_misses_in_row_ = 0;
    answered_since_miss_ = false;
    num_rounds_to_skip_ = 0;
    return;
  }
  if (num_rounds_to_skip_ > 0) {
    --num_rounds_to_skip_;
    return;
  }
  ++num_deadline_misses_;
  ++num_misses_in_row_;
  if (num_misses_in_row_ < kMissesBeforeSkipping) return;
  if (takes_over_ && answered_since_miss_) {  // it is well, and no faster than that
    takes_over_ = false;
    num_misses_in_row_ = 0;
    return;
  }
  num_rounds_to_skip_ = std::min(kMostSkippedRounds, 1 << std::min(num_misses_in_row_, 20));
}

DraftClient::State DraftClient::update(Clock::time_point now) {
  const double limit_s = std::max(down_after_s_, 8 * answer_s_);
  is_down_ = is_down_ || (waiting_since_ && seconds_of(now - *waiting_since_) > limit_s);
  // One that has nothing to answer would stay down: nobody tells it anything.
  if (is_down_ && !is_gone_ && link_ != nullptr && !is_congested() && now >= look_again_at_) {
    look_again_at_ = now + kLookInterval;
    post(FrameKind::kAlive);
  }
  return state();
}

DraftClient::State DraftClient::state() const {
  if (is_down_) return State::kDown;
  if (!asked_at_) return State::kIdle;
  return tokens_at_ ? State::kAnswering : State::kAsked;
}

double DraftClient::asked_s(Clock::time_point now) const { return seconds_of(now - *asked_at_); }

double DraftClient::silent_s(Clock::time_point now) const {
  return seconds_of(now - tokens_at_.value_or(*asked_at_));
}

}  // namespace outrider
