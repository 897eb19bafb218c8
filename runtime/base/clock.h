// The one place where a rank asks for the time, sleeps, or waits with a time-out. Normally that is
// the system's monotonic clock; a test or a rehearsal may put a virtual one in its place for the
// whole process (virtual_clock.h). Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace outrider {

class VirtualClock;

// As a clock of <chrono>. Time points are steady_clock's and are compared with each other only: in
// virtual time they say nothing about the system's.
class JobClock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now();
  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now().time_since_epoch()).count();
  }

  // To the microsecond: sleeps, and polls at the end for as long as the system has lately woken
  // this thread late (20 to 150 us).
  static void sleep_until(time_point time);
  static void sleep_for(duration time) { sleep_until(now() + time); }

  static bool is_virtual() { return source_.load(std::memory_order_acquire) != nullptr; }
  // True for a member of virtual time: then a wait must go through this class, or no time passes.
  static bool is_virtual_here();
  // Members of virtual time only: until then, or until something was noted; a little at least.
  static void listen_until(time_point time);
  // Says that a wait may be over, now or after delay: a message was posted, a result is there.
  // Nothing in real time, where waits poll or have their condition variable.
  static void record_event(duration delay = {});

 private:
  friend class ClockSeat;
  friend class VirtualClock;

  static inline std::atomic<VirtualClock*> source_{nullptr};
};

// A thread's place in virtual time; nothing at all without a virtual clock. Who starts threads
// reserves their seats first, so that time stands still until all have come; the thread holds the
// seat while it runs, and leaves it before it waits for a thread's end.
class ClockSeat {
 public:
  static int reserve();
  explicit ClockSeat(int reserved);  // what reserve() gave
  ~ClockSeat();
  ClockSeat(const ClockSeat&) = delete;
  ClockSeat& operator=(const ClockSeat&) = delete;

 private:
  VirtualClock* const source_;
};

// A condition variable whose time-outs are the job's time. What it waits for must be noted by
// notify_one().
class ClockCondition {
 public:
  void notify_one() {
    condition_.notify_one();
    JobClock::record_event();
  }
  // As std::condition_variable's.
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(std::unique_lock<std::mutex>& lock,
                std::chrono::duration<Rep, Period> timeout,
                Predicate holds) {
    if (!JobClock::is_virtual_here()) return condition_.wait_for(lock, timeout, holds);
    const JobClock::time_point deadline = JobClock::now() + timeout;
    while (!holds()) {
      if (JobClock::now() >= deadline) return false;
      lock.unlock();
      JobClock::listen_until(deadline);
      lock.lock();
    }
    return true;
  }

 private:
  std::condition_variable condition_;
};

inline double seconds_of(JobClock::duration time) {
  return std::chrono::duration<double>(time).count();
}
inline double seconds_since(JobClock::time_point begin) {
  return seconds_of(JobClock::now() - begin);
}

}  // namespace outrider
