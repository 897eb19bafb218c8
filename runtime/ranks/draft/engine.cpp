// See engine.h.
#include "runtime/ranks/draft/engine.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"
#include "runtime/comm/world/socket_world.h"
#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr double kGoodbyeS = 1.0;
constexpr double kReapS = 1.0;
constexpr double kRestS = 3.0;
constexpr double kLongestStartS = 600;  // as the ready barrier gives the first life
// More than this unsent, to either side, means that nobody takes it: what comes then is lost, since
// memory must not grow.
constexpr size_t kMaxUnsentBytes = 16 << 20;
// Of the frames that end something; a longer one is passed on without a look.
constexpr size_t kMostEndBytes = 64;

// Before MPI_Init only the launcher's word is known: how many ranks share this host, the draft's
// included.
int num_targets_here() {
  const char* local_size = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return local_size == nullptr ? INT_MAX : std::atoi(local_size) - 1;
}

std::optional<Frame> ending_frame(const Bytes& bytes) {
  Frame frame;
  if (bytes.size() > kMostEndBytes || !decode_frame(bytes, &frame)) return std::nullopt;
  if (frame.kind != FrameKind::kShutdown) return std::nullopt;
  return frame;
}

}  // namespace

std::unique_ptr<DraftEngine> DraftEngine::start(int draft_rank, const Body& body) {
  const int num_here = num_targets_here();
  const auto live = [=](int descriptor, uint32_t epoch) {
    SocketWorld world(
        descriptor,
        {.draft_rank = draft_rank, .num_targets_here = num_here, .peer = "the draft rank"});
    body(world, epoch);
    world.finish(0);
  };
  return std::unique_ptr<DraftEngine>(new DraftEngine(live));
}

DraftEngine::DraftEngine(const DraftKeeper::Body& body) : keeper_(body) { keeper_.start(epoch_); }

void DraftEngine::send(const Bytes& message) {
  if (socket_) socket_->post(message);
}

std::optional<Bytes> DraftEngine::wait_message() {
  Backoff backoff;
  while (state_ != State::kLost && state_ != State::kResting) {
    follow_keeper();
    if (socket_) {
      if (auto message = socket_->poll()) return message;
      if (socket_->closed()) return std::nullopt;
    }
    backoff.pause();
  }
  return std::nullopt;
}

Readiness DraftEngine::wait_report() {
  const auto message = wait_message();
  if (!message) return {.problem = why_not_started()};
  state_ = State::kServing;
  return WireReader(*message).get<Readiness>();
}

std::string DraftEngine::why_not_started() {
  if (state_ == State::kResting) return "no process could be made for the draft engine";
  keeper_.end(false);
  const auto news = keeper_.wait(kReapS);
  return fmt::format("the draft engine {} while it started",
                     news ? news->end : "closed its connection");
}

void DraftEngine::relay(World& world, const Bytes& device_answer) {
  // Bell and socket wake it, so it never polls: it shares its core with those that compute.
  constexpr std::chrono::microseconds kNotHot{0};
  Backoff idle(kNotHot);
  std::optional<Backoff> since_stop;
  hang_watch_.begin(Clock::now());
  since_ = Clock::now();
  while (true) {
    bool moved = hear_coordinator(world);
    moved = hear_engine(world, device_answer) || moved;
    follow_keeper();
    if (moved) idle = Backoff(kNotHot);
    if (stopping_ && !since_stop) since_stop.emplace();
    const bool is_over = engine_said_goodbye_ || state_ != State::kServing;
    // For an engine that has, or cannot any more; in the epoch that the coordinator knows.
    if (stopping_ && (is_over || since_stop->waited_s() > kGoodbyeS))
      return world.post(0, encode_frame(FrameKind::kShutdown, stop_epoch_));
    watch(world);
    if (idle.should_check()) world.check_alive(1);
    if (socket_ && socket_->num_unsent_bytes() > 0) {
      idle.pause();  // no bell rings when the engine has made room
    } else {
      world.pause_watching(idle, descriptor());
    }
  }
}

void DraftEngine::relay_rest(World& world) {
  for (Backoff backoff; socket_ && backoff.waited_s() < kRestS; backoff.pause()) {
    hear_coordinator(world);
    while (auto bytes = socket_->poll()) world.post(0, std::move(*bytes));
    if (socket_->closed()) return;  // after a look: what it said before it ended is still there
  }
}

// What wakes it beside the world's messages.
int DraftEngine::descriptor() const {
  if (socket_) return socket_->descriptor();
  const bool is_asked = state_ == State::kStarting || state_ == State::kEnding;
  return is_asked ? keeper_.descriptor() : -1;
}

// Each of the two looks takes all that is there; true when anything was. An engine that does not
// serve yet gets nothing: after its hello it is told everything.
bool DraftEngine::hear_coordinator(World& world) {
  bool moved = false;
  while (auto bytes = world.poll(0)) {
    moved = true;
    const auto end = ending_frame(*bytes);
    if (end) {
      stopping_ = true;
      stop_epoch_ = end->epoch;
    }
    if (state_ != State::kServing || !socket_) continue;
    // Of this life, though the coordinator may not have heard of it.
    if (end) socket_->post(encode_frame(FrameKind::kShutdown, epoch_));
    if (!end && socket_->num_unsent_bytes() < kMaxUnsentBytes) socket_->post(*bytes);
  }
  return moved;
}

bool DraftEngine::hear_engine(World& world, const Bytes& device_answer) {
  if (!socket_) return false;
  bool moved = false;
  while (auto bytes = socket_->poll()) {
    moved = true;
    hang_watch_.heard(Clock::now());
    if (state_ == State::kMeeting) {
      meet(world, *bytes, device_answer);
      if (!socket_) return true;
    } else if (ending_frame(*bytes)) {
      engine_said_goodbye_ = true;
      return true;
    } else if (world.num_unsent_bytes(0) < kMaxUnsentBytes) {
      world.post(0, std::move(*bytes));
    }
  }
  if (socket_->closed()) end_life(world, "");
  return moved;
}

// A later life says what the first one said to the other ranks: its GPU, then that it is ready.
void DraftEngine::meet(World& world, const Bytes& message, const Bytes& device_answer) {
  if (num_met_++ == 0) return socket_->post(device_answer);
  const std::string problem = WireReader(message).get<Readiness>().problem;
  if (!problem.empty()) return end_life(world, "could not start again: " + problem);
  state_ = State::kServing;
  restarts_.began(seconds_of(Clock::now() - since_));
  since_ = Clock::now();
  hang_watch_.begin(since_);
  log_info("the draft engine serves again (process {}, life {})", pid_, epoch_);
  world.post(0, encode_frame(FrameKind::kHello, epoch_));
}

void DraftEngine::follow_keeper() {
  if (state_ == State::kLost) return;
  const auto news = keeper_.poll();
  if (keeper_.is_gone() && !socket_) {  // its engine died with it
    log_error("the keeper of the draft's engines is gone: the draft stays away");
    state_ = State::kLost;
  }
  if (!news) return;
  if (state_ == State::kStarting) return begin_life(*news);
  if (state_ != State::kEnding) return;
  log_warning("the draft engine (process {}) {}; the next one starts in {:.2f} s",
              pid_,
              news->end,
              rest_s_);
  state_ = State::kResting;
  since_ = Clock::now();
}

void DraftEngine::begin_life(const DraftKeeper::News& news) {
  since_ = Clock::now();
  if (news.descriptor < 0) {
    rest_s_ = restarts_.pause_s();
    log_error("no process for the draft engine; the next try is in {:.2f} s", rest_s_);
    state_ = State::kResting;
    return;
  }
  pid_ = news.pid;
  num_met_ = 0;
  socket_.emplace(news.descriptor);
  state_ = State::kMeeting;
}

void DraftEngine::watch(World& world) {
  const Clock::time_point now = Clock::now();
  const double age_s = seconds_of(now - since_);
  if (state_ == State::kServing) {
    const HangWatch::Verdict verdict = hang_watch_.look(now);
    if (verdict == HangWatch::Verdict::kAsk) socket_->post(encode_frame(FrameKind::kAlive, epoch_));
    if (verdict == HangWatch::Verdict::kHung) end_life(world, "does not answer");
  } else if (state_ == State::kMeeting && age_s > kLongestStartS) {
    end_life(world, "takes too long to start");
  } else if (state_ == State::kResting && age_s > rest_s_ && !stopping_) {
    keeper_.start(++epoch_);
    state_ = State::kStarting;
    since_ = now;
  }
}

// why: empty for one that ended by itself.
void DraftEngine::end_life(World& world, const std::string& why) {
  if (!why.empty()) log_warning("the draft engine (process {}) {}: it is ended", pid_, why);
  const bool served = state_ == State::kServing;
  if (served) world.post(0, encode_frame(FrameKind::kGone, epoch_));
  rest_s_ = restarts_.pause_s(served ? seconds_of(Clock::now() - since_) : 0);
  socket_.reset();
  keeper_.end(!why.empty());
  state_ = State::kEnding;
  since_ = Clock::now();
}

void report_ready(World& rank, const Readiness& readiness) { rank.post(0, wire_bytes(readiness)); }

}  // namespace outrider
