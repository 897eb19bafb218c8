// See loop.h.
#include "runtime/ranks/draft/loop.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/clock.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/messages/round_trace.h"
#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr auto kAliveInterval = std::chrono::milliseconds(50);
constexpr size_t kMaxUnsentBytes = 1 << 20;

// The draft's end of the link.
class DraftPort {
 public:
  DraftPort(World& world, uint32_t epoch) : world_(world), epoch_(epoch) {}

  // Takes all that has arrived; false after shutdown.
  bool receive_into(DraftWorker& worker) {
    while (auto bytes = world_.poll(0)) {
      Frame frame;
      if (!decode_frame(*bytes, epoch_, &frame)) continue;
      if (frame.kind == FrameKind::kShutdown) {
        post(FrameKind::kShutdown, {});  // goodbye
        return false;
      }
      if (frame.kind == FrameKind::kAlive) post(FrameKind::kAlive, {});
      if (frame.kind == FrameKind::kForget) worker.forget_all();
      if (frame.kind == FrameKind::kRequest) worker.take(decode_draft_request(frame.payload));
    }
    return true;
  }
  // Where the link takes nothing, tokens wait in the worker: memory must not grow.
  void send_from(DraftWorker& worker) {
    if (world_.num_unsent_bytes(0) > kMaxUnsentBytes) return;
    const auto reply = worker.take_reply();
    if (!reply) return;
    trace_reply_out(*reply);
    post(FrameKind::kReply, encode(*reply));
  }
  void say_alive() {
    if (JobClock::now() - last_sent_ >= kAliveInterval) post(FrameKind::kAlive, {});
  }

 private:
  void post(FrameKind kind, Bytes payload) {
    world_.post(0, encode_frame({.kind = kind, .epoch = epoch_, .payload = std::move(payload)}));
    last_sent_ = JobClock::now();
  }

  World& world_;
  const uint32_t epoch_;
  JobClock::time_point last_sent_{};
};

// Tells the worker of the time that it had nothing to do.
class IdleTime {
 public:
  explicit IdleTime(DraftWorker& worker) : worker_(worker) {}
  void note() {
    const auto now = JobClock::now();
    const auto idle = std::chrono::duration_cast<std::chrono::microseconds>(now - since_);
    worker_.record_idle(static_cast<uint64_t>(idle.count()));
    since_ = now;
  }

 private:
  DraftWorker& worker_;
  JobClock::time_point since_ = JobClock::now();
};

// Where the draft shares cores with targets, its wake-ups do not interrupt them, and theirs
// interrupt it: a target that is late makes all of them late. Of real-time priorities a lower one
// gets nothing while a higher one works: a draft that computes on those cores keeps its own. This
// thread only.
void let_targets_go_first(bool takes_cpu) {
  sched_param param{};
  const int policy = sched_getscheduler(0);
  if (policy == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &param);
  if (takes_cpu || (policy != SCHED_RR && policy != SCHED_FIFO)) return;
  sched_getparam(0, &param);
  param.sched_priority = std::max(param.sched_priority - 1, sched_get_priority_min(policy));
  sched_setscheduler(0, policy, &param);
}

}  // namespace

void run_draft_loop(World& world, uint32_t epoch, bool takes_cpu, DraftWorker& worker) {
  DraftPort port(world, epoch);
  let_targets_go_first(takes_cpu);
  while (true) {
    Backoff backoff;
    IdleTime idle(worker);
    std::optional<TraceSpan> idle_span;
    while (true) {
      if (!port.receive_into(worker)) return;
      if (worker.has_work()) idle.note();
      port.send_from(worker);
      if (worker.has_work()) break;
      if (!idle_span) idle_span.emplace(TraceKind::kDraftIdle);
      if (backoff.should_check()) world.check_alive(1);
      world.pause(backoff);
    }
    idle_span.reset();
    worker.step();
    port.send_from(worker);
    port.say_alive();
  }
}

void wait_for_shutdown(World& world, uint32_t epoch) {
  Backoff backoff;
  while (true) {
    while (auto bytes = world.poll(0)) {
      Frame frame;
      if (!decode_frame(*bytes, epoch, &frame) || frame.kind != FrameKind::kShutdown) continue;
      world.post(0, encode_frame(FrameKind::kShutdown, epoch));
      return;
    }
    if (backoff.should_check()) world.check_alive(1);
    world.pause(backoff);
  }
}

}  // namespace outrider
