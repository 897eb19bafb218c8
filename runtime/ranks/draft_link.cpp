// See draft_link.h.
#include "runtime/ranks/draft_link.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/round_wire.h"

namespace outrider {
namespace {

constexpr double kMinWaitS = 0.002;
constexpr double kMaxWaitS = 0.050;
constexpr double kDownAfterS = 0.3;
constexpr double kLongestDownAfterS = 10.0;
constexpr double kGoodbyeS = 3.0;  // a healthy draft needs one forward pass at most
constexpr int kMissesBeforeSkipping = 3;
constexpr int kMostSkippedRounds = 256;
// More than this unsent means that nobody takes it: the draft is gone, and memory must not grow.
constexpr size_t kMaxUnsentBytes = 1 << 20;
constexpr size_t kMaxUnanswered = 64;
constexpr double kAverageWeight = 0.2;

double seconds(DraftLink::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void update_average(double* average, double value) {
  *average = *average == 0 ? value : (1 - kAverageWeight) * *average + kAverageWeight * value;
}

}  // namespace

DraftLink::DraftLink(World& world, int draft_rank, uint32_t epoch, double patience_s)
    : world_(world),
      draft_rank_(draft_rank),
      epoch_(epoch),
      patience_s_(patience_s),
      down_after_s_(std::max(kDownAfterS, patience_s)) {}

void DraftLink::send(DraftRequest request, Clock::time_point now) {
  if (request.closes.empty() && request.opens.empty() && request.commits.empty()) return;
  if (world_.num_unsent_bytes(draft_rank_) > kMaxUnsentBytes) return;
  request.serial = next_serial_++;
  const bool asks = std::any_of(request.commits.begin(),
                                request.commits.end(),
                                [](const DraftCommit& commit) { return commit.draft_len > 0; });
  if (asks) {
    unanswered_.push_back({request.serial, now});
    if (unanswered_.size() > kMaxUnanswered) unanswered_.pop_front();
    last_sent_at_ = now;
    if (!waiting_since_) waiting_since_ = now;
  }
  Bytes frame =
      encode_frame({.kind = FrameKind::kRequest, .epoch = epoch_, .payload = encode(request)});
  num_sent_bytes_ += frame.size();
  world_.post(draft_rank_, std::move(frame));
}

std::vector<DraftReply> DraftLink::receive(Clock::time_point now) {
  std::vector<DraftReply> replies;
  while (auto bytes = world_.poll(draft_rank_)) {
    num_received_bytes_ += bytes->size();
    Frame frame;
    if (!decode_frame(*bytes, epoch_, &frame)) {
      ++num_dropped_frames_;
      continue;
    }
    if (frame.kind == FrameKind::kGone) {
      state_ = DraftState::kDown;
      continue;
    }
    if (state_ == DraftState::kDown && waiting_since_) {
      down_after_s_ =
          std::min(kLongestDownAfterS, std::max(down_after_s_, 2 * seconds(now - *waiting_since_)));
    }
    waiting_since_ = unanswered_.empty() ? std::nullopt : std::optional(now);
    state_ = DraftState::kUp;
    if (frame.kind != FrameKind::kReply) continue;
    try {
      replies.push_back(decode_draft_reply(frame.payload));
      note_answer(replies.back(), now);
    } catch (const Error&) {
      ++num_dropped_frames_;
    }
  }
  return replies;
}

void DraftLink::note_answer(const DraftReply& reply, Clock::time_point now) {
  if (reply.num_steps > 0) {
    update_average(&draft_step_s_,
                   1e-6 * static_cast<double>(reply.step_time_us) / reply.num_steps);
  }
  // A late answer counts too: it is how the usual answer time grows to what it really is.
  while (!unanswered_.empty() && unanswered_.front().serial <= reply.serial) {
    if (unanswered_.front().serial == reply.serial) {
      const double answer_s = seconds(now - unanswered_.front().sent_at);
      update_average(&answer_s_, answer_s);
      if (answer_s < kMaxWaitS) num_rounds_to_skip_ = 0;
    }
    unanswered_.pop_front();
  }
  if (unanswered_.empty()) waiting_since_.reset();
}

bool DraftLink::shut_down() {
  world_.post(draft_rank_,
              encode_frame({.kind = FrameKind::kShutdown, .epoch = epoch_, .payload = {}}));
  Backoff backoff;
  while (backoff.waited_s() < kGoodbyeS) {
    while (auto bytes = world_.poll(draft_rank_)) {
      Frame frame;
      if (decode_frame(*bytes, epoch_, &frame) && frame.kind == FrameKind::kShutdown) return true;
    }
    world_.pause(backoff);
  }
  return false;
}

DraftLink::Clock::time_point DraftLink::deadline(double worth_s) const {
  const double longest = std::max(kMaxWaitS, worth_s);
  double wait_s = answer_s_ == 0 ? longest : std::clamp(2 * answer_s_, kMinWaitS, longest);
  if (num_rounds_to_skip_ > 0) wait_s = 0;
  return last_sent_at_ + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(std::max(wait_s, patience_s_)));
}

void DraftLink::note_wait(bool complete) {
  if (complete) {
    num_misses_in_row_ = 0;
    num_rounds_to_skip_ = 0;
    return;
  }
  if (num_rounds_to_skip_ > 0) {
    --num_rounds_to_skip_;
    return;
  }
  ++num_deadline_misses_;
  ++num_misses_in_row_;
  if (num_misses_in_row_ >= kMissesBeforeSkipping) {
    num_rounds_to_skip_ = std::min(kMostSkippedRounds, 1 << std::min(num_misses_in_row_, 20));
  }
}

DraftState DraftLink::update_state(Clock::time_point now) {
  if (state_ == DraftState::kUp && waiting_since_) {
    const double limit_s = std::max(down_after_s_, 8 * answer_s_);
    if (seconds(now - *waiting_since_) > limit_s) state_ = DraftState::kDown;
  }
  return state_;
}

}  // namespace outrider
