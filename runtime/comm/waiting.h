// How a rank waits without hurting the others: a hot phase for latency, then yields, then short
// sleeps, because more ranks than cores is the normal case on one machine.
#pragma once

#include <sched.h>
#include <time.h>

#include <chrono>

namespace outrider {

class Backoff {
 public:
  void pause() {
    ++num_pauses_;
    if (num_pauses_ <= kHotPauses) return;
    if (num_pauses_ <= kYieldPauses) {
      sched_yield();
      return;
    }
    const auto waited = std::chrono::steady_clock::now() - begin_;
    // A wait of a second means an idle job: then 0.5 ms of latency matters less than a core.
    sleep_us(waited > std::chrono::seconds(1) ? 500 : 20);
  }
  // True about every millisecond of waiting: time to look whether the peers are still there.
  bool should_check() {
    if (num_pauses_ <= kYieldPauses) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_check_ < std::chrono::milliseconds(1)) return false;
    last_check_ = now;
    return true;
  }
  double waited_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  static void sleep_us(long us) {
    const timespec time{0, us * 1000};
    nanosleep(&time, nullptr);
  }

 private:
  static constexpr int kHotPauses = 64;
  static constexpr int kYieldPauses = 512;
  int num_pauses_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_check_ = begin_;
};

}  // namespace outrider
