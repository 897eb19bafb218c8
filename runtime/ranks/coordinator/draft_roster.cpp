// See draft_roster.h.
#include "runtime/ranks/coordinator/draft_roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/ranks/messages/draft_hello.h"

namespace outrider {
namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(20);
// A draft that stands by is asked this often whether it lives, and may be silent for so long.
constexpr auto kAskInterval = std::chrono::seconds(1);
constexpr auto kLongestSilence = std::chrono::seconds(3);
// Drafts change when that brings something: all texts must be read anew.
constexpr double kClearlyFaster = 0.8;
constexpr double kFlushS = 0.2;
constexpr size_t kMostDrafts = 16;
constexpr int kMostFramesAtOnce = 64;

}  // namespace

void DraftRoster::add_rank(std::unique_ptr<DraftLink> link, int rank, uint32_t epoch) {
  drafts_.push_back(std::make_unique<Draft>(Draft{.link = std::move(link),
                                                  .name = fmt::format("rank {}", rank),
                                                  .epoch = epoch,
                                                  .is_rank = true,
                                                  .state = State::kReady}));
  name_ = drafts_.back()->name;
}

void DraftRoster::look(Clock::time_point now) {
  if (server_ == nullptr) return;
  drop_closed();
  if (now >= next_look_) {
    next_look_ = now + kLookInterval;
    take_arrivals(now);
    for (const auto& draft : drafts_) {
      if (serves(*draft)) continue;
      hear(*draft, now);
      ask(*draft, now);
    }
  }
  choose(now);
}

void DraftRoster::take_arrivals(Clock::time_point now) {
  for (DraftServer::Arrival& arrival : server_->take_arrivals()) {
    if (drafts_.size() >= kMostDrafts) {
      log_warning("{} is one draft too many ({}): it is sent away", arrival.name, kMostDrafts);
      continue;
    }
    drafts_.push_back(std::make_unique<Draft>(Draft{.link = std::move(arrival.link),
                                                    .name = std::move(arrival.name),
                                                    .epoch = arrival.epoch,
                                                    .heard_at = now}));
  }
}

void DraftRoster::drop_closed() {
  std::erase_if(drafts_, [&](const std::unique_ptr<Draft>& draft) {
    if (!draft->link->is_closed()) return false;
    log_info("a draft has left: {}", draft->name);
    if (serves(*draft)) client_.attach(nullptr, 0);
    if (newcomer_ == draft.get()) newcomer_ = nullptr;
    return true;
  });
}

void DraftRoster::hear(Draft& draft, Clock::time_point now) {
  for (int i = 0; i < kMostFramesAtOnce; ++i) {
    const auto bytes = draft.link->poll();
    if (!bytes) return;
    Frame frame;
    if (decode_frame(*bytes, &frame)) take_frame(draft, frame, now);
  }
}

void DraftRoster::take_frame(Draft& draft, const Frame& frame, Clock::time_point now) {
  if (frame.kind == FrameKind::kHello && frame.epoch >= draft.epoch) {
    draft.epoch = frame.epoch;
    draft.step_s = 1e-6 * static_cast<double>(decode_draft_speed(frame.payload));
  } else if (frame.epoch != draft.epoch || draft.state == State::kLoading) {
    return;
  } else if (frame.kind == FrameKind::kGone) {
    draft.state = State::kGone;
    return;
  } else if (draft.state == State::kGone) {
    return;
  }
  if (std::exchange(draft.state, State::kReady) != State::kReady) newcomer_ = &draft;
  draft.heard_at = now;
  draft.was_asked = false;
}

// One that loads answers nothing; TCP says when it is gone.
void DraftRoster::ask(Draft& draft, Clock::time_point now) const {
  if (draft.state != State::kReady) return;
  if (!draft.was_asked && now - draft.heard_at > kAskInterval) {
    draft.link->post(encode_frame(FrameKind::kAlive, draft.epoch));
    draft.was_asked = true;
  } else if (draft.was_asked && now - draft.heard_at > kLongestSilence) {
    draft.state = State::kSilent;
  }
}

DraftRoster::Draft* DraftRoster::fastest_ready() {
  Draft* best = nullptr;
  for (const auto& draft : drafts_) {
    if (serves(*draft) || draft->state != State::kReady) continue;
    if (best == nullptr || draft->step_s < best->step_s) best = draft.get();
  }
  return best;
}

void DraftRoster::choose(Clock::time_point now) {
  Draft* const newcomer = std::exchange(newcomer_, nullptr);
  if (client_.update(now) == DraftClient::State::kDown) {
    if (Draft* const next = fastest_ready()) let_serve(*next);
    return;
  }
  if (newcomer == nullptr || newcomer->step_s == 0 || serves(*newcomer)) return;
  double step_s = client_.draft_step_s();
  for (const auto& draft : drafts_)
    if (serves(*draft) && draft->step_s > 0) step_s = draft->step_s;
  if (step_s > 0 && newcomer->step_s < kClearlyFaster * step_s) let_serve(*newcomer);
}

void DraftRoster::let_serve(Draft& next) {
  for (const auto& draft : drafts_) {
    if (!serves(*draft)) continue;
    draft->epoch = client_.epoch();
    draft->heard_at = Clock::now();
    draft->was_asked = false;
    draft->state = client_.is_gone() ? State::kGone : State::kReady;
    // Down, but for the coming answer: it is not chosen before it says something.
    if (client_.state() == DraftClient::State::kDown && draft->state == State::kReady)
      draft->state = State::kSilent;
  }
  client_.attach(next.link.get(), next.epoch);
  name_ = next.name;
}

size_t DraftRoster::num_standing_by() const {
  return static_cast<size_t>(std::ranges::count_if(drafts_, [&](const auto& draft) {
    return draft->state == State::kReady && !serves(*draft);
  }));
}

bool DraftRoster::shut_down() {
  Draft* rank = nullptr;
  for (const auto& draft : drafts_) {
    const uint32_t epoch = serves(*draft) ? client_.epoch() : draft->epoch;
    if (draft->is_rank) {
      rank = draft.get();
      rank->epoch = epoch;
    } else {
      draft->link->post(encode_frame(FrameKind::kShutdown, epoch));
    }
  }
  for (const auto& draft : drafts_) {
    for (Backoff wait; draft->link->num_unsent_bytes() > 0 && !draft->is_rank; wait.pause()) {
      if (wait.waited_s() > kFlushS || draft->link->is_closed()) break;
      draft->link->poll();
    }
  }
  if (rank == nullptr) return true;
  if (!serves(*rank)) client_.attach(rank->link.get(), rank->epoch);
  return client_.shut_down();
}

}  // namespace outrider
