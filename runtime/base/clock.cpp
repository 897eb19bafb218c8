// See clock.h.
#include "runtime/base/clock.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "runtime/base/virtual_clock.h"

namespace outrider {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
// What is polled at the end of a sleep: as much as the system has lately woken this thread late, at
// least and at most so much.
constexpr int64_t kLeastPolledNs = 20'000;
constexpr int64_t kMostPolledNs = 150'000;

// How late this thread is woken: a bound that most wake-ups keep. It rises with those that break it
// and sinks slowly.
class WakeDelay {
 public:
  int64_t polled_ns() const { return std::max(bound_ns_, kLeastPolledNs); }
  void note(int64_t late_ns) {
    const int64_t late = std::min(late_ns + kLeastPolledNs / 2, kMostPolledNs);
    bound_ns_ += late > bound_ns_ ? (late - bound_ns_) / 4 : (late - bound_ns_) / 64;
  }

 private:
  int64_t bound_ns_ = kLeastPolledNs;
};

int64_t ns_of(JobClock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

void sleep_until_system_ns(int64_t time_ns) {
  // The default timer slack of 50 us would make every sleep late by so much.
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1000UL);
  static_cast<void>(slack_set);
  thread_local WakeDelay delay;
  const auto now_ns = [] { return ns_of(std::chrono::steady_clock::now().time_since_epoch()); };
  const int64_t begin_ns = now_ns();
  const int64_t wake_ns = time_ns - delay.polled_ns();
  if (begin_ns < wake_ns) {
    const timespec wake{wake_ns / kNsPerSecond, wake_ns % kNsPerSecond};
    while (now_ns() < wake_ns) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
    delay.note(now_ns() - wake_ns);
  }
  while (now_ns() < time_ns) {
  }
}

}  // namespace

JobClock::time_point JobClock::now() {
  VirtualClock* const source = source_.load(std::memory_order_acquire);
  if (source == nullptr) return std::chrono::steady_clock::now();
  return time_point(std::chrono::nanoseconds(source->now_ns()));
}

bool JobClock::is_virtual_here() {
  VirtualClock* const source = source_.load(std::memory_order_acquire);
  return source != nullptr && source->is_member();
}

void JobClock::sleep_until(time_point time) {
  VirtualClock* const source = source_.load(std::memory_order_acquire);
  const int64_t time_ns = ns_of(time.time_since_epoch());
  if (source == nullptr) return sleep_until_system_ns(time_ns);
  if (source->is_member()) return source->wait_until(time_ns, false);
  // Who is no member of virtual time waits as long in real time.
  const int64_t left_ns = time_ns - source->now_ns();
  sleep_until_system_ns(ns_of(std::chrono::steady_clock::now().time_since_epoch()) + left_ns);
}

void JobClock::listen_until(time_point time) {
  source_.load(std::memory_order_acquire)->wait_until(ns_of(time.time_since_epoch()), true);
}

void JobClock::record_event(duration delay) {
  VirtualClock* const source = source_.load(std::memory_order_acquire);
  if (source != nullptr) source->record_event(ns_of(delay));
}

int ClockSeat::reserve() {
  VirtualClock* const source = JobClock::source_.load(std::memory_order_acquire);
  return source == nullptr ? -1 : source->reserve_seat();
}

ClockSeat::ClockSeat(int reserved)
    : source_(reserved < 0 ? nullptr : JobClock::source_.load(std::memory_order_acquire)) {
  if (source_ != nullptr) source_->take_seat(reserved);
}

ClockSeat::~ClockSeat() {
  if (source_ != nullptr) source_->leave_seat();
}

}  // namespace outrider
