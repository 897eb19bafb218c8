// What a step of the draft takes by its rows, as measured. Used by the draft worker's thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>

namespace outrider {

class StepTimes {
 public:
  // What disturbs a step makes it longer, so that shorter ones count more.
  void add(int32_t num_rows, double seconds) {
    const auto [found, is_new] = times_.try_emplace(bucket_of(num_rows), Time{seconds, 0});
    Time& time = found->second;
    time.last_step = ++num_steps_;
    if (is_new) return;
    time.seconds += (seconds < time.seconds ? 0.5 : 0.1) * (seconds - time.seconds);
  }

  // 0 when nothing is known. Of numbers of rows not seen yet, or not lately, the least that it can
  // be: so they are tried, and found out; else a few disturbed steps of many rows, or those of a
  // time when all steps were longer, would keep them from ever being tried again. Never falls with
  // the rows.
  double at(int32_t num_rows) const {
    double most = 0;
    double most_of_old = 0;
    const auto end = times_.upper_bound(bucket_of(num_rows));
    for (auto time = times_.begin(); time != end; ++time) {
      double& greatest = is_old(time->second) ? most_of_old : most;
      greatest = std::max(greatest, time->second.seconds);
    }
    if (most > 0) return most;
    for (auto time = end; time != times_.end(); ++time) {
      if (!is_old(time->second)) return std::min(most_of_old, time->second.seconds);
    }
    return most_of_old;
  }

 private:
  // 4 to a doubling.
  static int32_t bucket_of(int32_t num_rows) {
    const int width = static_cast<int>(std::bit_width(static_cast<uint32_t>(num_rows)));
    const int shift = width > 3 ? width - 3 : 0;
    return 4 * shift + (num_rows >> shift);
  }

  static constexpr int64_t kOldAfterSteps = 256;
  struct Time {
    double seconds;
    int64_t last_step;
  };
  bool is_old(const Time& time) const { return num_steps_ - time.last_step > kOldAfterSteps; }

  std::map<int32_t, Time> times_;
  int64_t num_steps_ = 0;
};

}  // namespace outrider
