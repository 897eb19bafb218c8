// When a draft that is gone is started again, and when one that is silent counts as hung. Plain
// rules on times that are given to them. Used by the draft rank (engine.h) and by `outrider draft`.
#pragma once

#include <optional>

#include "runtime/base/clock.h"

namespace outrider {

// A life that served for at least as long as it took to begin, and a second, was a good one: the
// next begins soon. Else each pause is twice the one before, so that an engine that cannot live
// costs its host little.
class RestartTimes {
 public:
  explicit RestartTimes(double first_s = 0.25, double longest_s = 30)
      : first_s_(first_s), longest_s_(longest_s), next_s_(first_s) {}
  // How long the life that has begun to serve took to do so.
  void began(double begin_s) { begin_s_ = begin_s; }
  // Seconds to wait after a life that served for so long; 0 = it never came to it.
  double pause_s(double served_s = 0);

 private:
  const double first_s_;
  const double longest_s_;
  double next_s_;
  double begin_s_ = 0;
};

// An engine says something after each of its steps, and answers a question between two of them. So
// silence after a question can be honest for one step at most: reading a prompt of full rows with a
// large draft on few cores takes seconds. Five are given; what turned out to be merely slow, and
// every engine that was ended for its silence, makes the next ones' time longer. Half a second more
// is for a machine that stood still, where whoever looks may run before the engine does.
class HangWatch {
 public:
  using Clock = JobClock;
  enum class Verdict { kFine, kAsk, kHung };
  void begin(Clock::time_point now);
  void heard(Clock::time_point now);
  // kAsk: whether it lives is to be asked now.
  Verdict look(Clock::time_point now);
  double patience_s() const { return patience_s_; }

 private:
  double patience_s_ = 5;
  Clock::time_point heard_at_{};
  std::optional<Clock::time_point> asked_at_;
  std::optional<Clock::time_point> doubted_at_;  // a first look after its time
};

}  // namespace outrider
