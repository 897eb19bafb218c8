// How a rank waits without hurting the others: a short hot phase for latency, then short sleeps,
// because more ranks than cores is the normal case on one machine. Sleeps rather than yields: a
// yield hands the core over for whole time slices when anything else runs, a sleeper is woken at
// once. Where the one that is waited for can wake the sleeper, the sleep is a wait for that
// (World::pause, arena_group.cpp).
#pragma once

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/clock.h"

namespace outrider {

// The default timer slack of 50 us is longer than most waits here.
inline void use_fine_timers() {
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1000UL);
  static_cast<void>(slack_set);
}

class Backoff {
 public:
  // hot_time: how long to poll without a break. Longer where the answer is microseconds away; none
  // where it is not.
  explicit Backoff(std::chrono::microseconds hot_time = std::chrono::microseconds(30))
      : hot_time_(hot_time) {}

  void pause() {
    pause([](auto time, auto) { sleep_us(time.count()); });
  }
  // sleep(time, most): what to do in place of sleeping so long, where something may end it sooner;
  // `most` is how long the wait may last at all. Not called in virtual time.
  template <typename Sleep>
  void pause(const Sleep& sleep) {
    const bool is_virtual = JobClock::is_virtual_here();
    if (!is_virtual) {
      ++num_pauses_;
      relax();
      if (num_pauses_ <= kHotPauses && hot_time_ > kNoTime) return;
    }
    const auto now = JobClock::now();
    const auto waited = now - begin_;
    if (waited < hot_time_ && !is_virtual) return;
    sleeping_ = true;
    // An eighth of what was waited already: the latency added is in proportion, and a rank that
    // waits for long leaves its core to those that compute.
    const auto waited_us = std::chrono::duration_cast<std::chrono::microseconds>(waited).count();
    // Who has waited for a second is idle, and a few milliseconds of the next request's time matter
    // less than thousands of wake-ups a second.
    const long longest_us = waited_us < 1000000 ? 500 : 4000;
    const long us = std::clamp<long>(static_cast<long>(waited_us / 8), 5, longest_us);
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end_ - now);
    const auto most = std::clamp<std::chrono::microseconds>(left, kNoTime, kLongestSleep);
    const auto time = std::min(std::chrono::microseconds(us), most);
    if (is_virtual) return JobClock::listen_until(now + time);
    sleep(time, most);
  }
  // Sleeps are cut short at that time.
  void end_at(JobClock::time_point end) { end_ = end; }
  // Tells the core that this is a wait: the other thread of the core gets on.
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // True about every millisecond of waiting: time to look whether the peers are still there.
  bool should_check() {
    if (!sleeping_) return false;
    const auto now = JobClock::now();
    if (now - last_check_ < std::chrono::milliseconds(1)) return false;
    last_check_ = now;
    return true;
  }
  double waited_s() const {
    return std::chrono::duration<double>(JobClock::now() - begin_).count();
  }
  static void sleep_us(long us) {
    use_fine_timers();
    const timespec time{0, us * 1000};
    nanosleep(&time, nullptr);
  }

 private:
  static constexpr int kHotPauses = 16;
  static constexpr std::chrono::microseconds kNoTime{0};
  static constexpr std::chrono::microseconds kLongestSleep{20000};
  std::chrono::microseconds hot_time_;
  int num_pauses_ = 0;
  bool sleeping_ = false;
  JobClock::time_point begin_ = JobClock::now();
  JobClock::time_point last_check_ = begin_;
  JobClock::time_point end_ = JobClock::time_point::max();
};

}  // namespace outrider
