// See virtual_clock.h.
#include "runtime/base/virtual_clock.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

// Far from 0, which stands for "never" in some time points.
constexpr int64_t kStartNs = 1'000'000'000'000;
constexpr int64_t kShortestListenNs = 1000;
constexpr int kNobody = -1;

thread_local int seat_of_this_thread = kNobody;

}  // namespace

VirtualClock::VirtualClock() : now_ns_(kStartNs), running_(kNobody) {
  VirtualClock* none = nullptr;
  if (!JobClock::source_.compare_exchange_strong(none, this))
    throw Error("this process has a virtual clock already");
}

VirtualClock::~VirtualClock() { JobClock::source_.store(nullptr, std::memory_order_release); }

uint64_t VirtualClock::history() const {
  std::lock_guard lock(mutex_);
  return history_;
}

int64_t VirtualClock::num_turns() const {
  std::lock_guard lock(mutex_);
  return num_turns_;
}

bool VirtualClock::is_member() { return seat_of_this_thread != kNobody; }

void VirtualClock::record_event(int64_t delay_ns) {
  std::lock_guard lock(mutex_);
  const int64_t time_ns = now_ns_ + std::max<int64_t>(0, delay_ns);
  for (auto& [number, seat] : seats_) {
    if (seat.listens) seat.wake_ns = std::min(seat.wake_ns, time_ns);
  }
  if (time_ns > now_ns_) coming_events_.insert(time_ns);
}

int VirtualClock::reserve_seat() {
  std::lock_guard lock(mutex_);
  seats_[next_seat_];
  return next_seat_++;
}

void VirtualClock::take_seat(int seat) {
  std::unique_lock lock(mutex_);
  OUTRIDER_CHECK(seat_of_this_thread == kNobody);
  seat_of_this_thread = seat;
  Seat& mine = seats_.at(seat);
  mine.taken = true;
  mine.wake_ns = now_ns_;
  pass_turn();
  wait_for_turn(lock, seat);
}

void VirtualClock::leave_seat() {
  std::lock_guard lock(mutex_);
  seats_.erase(seat_of_this_thread);
  seat_of_this_thread = kNobody;
  running_ = kNobody;
  pass_turn();
}

void VirtualClock::wait_until(int64_t time_ns, bool listens) {
  std::unique_lock lock(mutex_);
  // A wait that asks again and again must get on.
  if (listens) time_ns = std::max(time_ns, now_ns_ + kShortestListenNs);
  if (time_ns <= now_ns_) return;
  const int number = seat_of_this_thread;
  Seat& mine = seats_.at(number);
  mine.listens = listens;
  mine.wake_ns = time_ns;
  if (listens && !coming_events_.empty())
    mine.wake_ns = std::min(mine.wake_ns, *coming_events_.begin());
  running_ = kNobody;
  pass_turn();
  wait_for_turn(lock, number);
  mine.listens = false;
}

// With the mutex held.
void VirtualClock::pass_turn() {
  if (running_ != kNobody) return;
  auto next = seats_.end();
  for (auto seat = seats_.begin(); seat != seats_.end(); ++seat) {
    if (!seat->second.taken) return;  // time waits for it
    if (next == seats_.end() || seat->second.wake_ns < next->second.wake_ns) next = seat;
  }
  if (next == seats_.end()) return;
  now_ns_ = std::max(now_ns_.load(), next->second.wake_ns);
  coming_events_.erase(coming_events_.begin(), coming_events_.upper_bound(now_ns_));
  running_ = next->first;
  ++num_turns_;
  history_ =
      mix_seed(mix_seed(history_, static_cast<uint64_t>(now_ns_)), static_cast<uint64_t>(running_));
  next->second.turn.notify_one();
}

void VirtualClock::wait_for_turn(std::unique_lock<std::mutex>& lock, int seat) {
  std::condition_variable& turn = seats_.at(seat).turn;
  turn.wait(lock, [&] { return running_ == seat; });
}

}  // namespace outrider
