// Time that passes only when everybody waits, for tests and rehearsals of what a job does when, in
// one process: the same run has the same history on any machine, however busy it is. While one of
// these lives, it is the time of the whole process (clock.h).
//
// Threads with a seat (ClockSeat) are members. Only one of them runs at a time; computing costs no
// time. When all wait, time jumps to the earliest moment that one of them waits for, and that one
// runs (of equals the seat with the lowest number). A member must not wait for another by anything
// but JobClock: a bare condition variable or join would stop time for good.
#pragma once

#include <map>
#include <set>

#include "runtime/base/clock.h"

namespace outrider {

class VirtualClock {
 public:
  // Throws Error when there is one already. Threads that will be members are started afterwards.
  VirtualClock();
  ~VirtualClock();  // after all members have left
  VirtualClock(const VirtualClock&) = delete;
  VirtualClock& operator=(const VirtualClock&) = delete;

  int64_t now_ns() const { return now_ns_.load(std::memory_order_acquire); }
  // Who ran when, so far, as one number: equal for equal runs.
  uint64_t history() const;
  int64_t num_turns() const;

  // For JobClock and ClockSeat.
  static bool is_member();  // the calling thread
  // Of members only. listens: at most until then, and woken by an event.
  void wait_until(int64_t time_ns, bool listens);
  // In delay_ns something may be there that listeners wait for.
  void record_event(int64_t delay_ns);
  int reserve_seat();
  void take_seat(int seat);
  void leave_seat();

 private:
  struct Seat {
    bool taken = false;
    bool listens = false;
    int64_t wake_ns = 0;
    std::condition_variable turn;
  };

  void pass_turn();
  void wait_for_turn(std::unique_lock<std::mutex>& lock, int seat);

  mutable std::mutex mutex_;
  std::atomic<int64_t> now_ns_;  // changed under the mutex
  std::map<int, Seat> seats_;
  int next_seat_ = 0;
  int running_;
  std::multiset<int64_t> coming_events_;  // later than now
  uint64_t history_ = 0;
  int64_t num_turns_ = 0;
};

}  // namespace outrider
