// What a step of the draft takes by its rows, as measured. Used by the draft worker's thread.
#pragma once

#include <bit>
#include <cstdint>
#include <map>

namespace outrider {

class StepTimes {
 public:
  // What disturbs a step makes it longer, so that shorter ones count more.
  void add(int32_t num_rows, double seconds) {
    const auto [found, is_new] = seconds_.try_emplace(bucket_of(num_rows), seconds);
    if (is_new) return;
    found->second += (seconds < found->second ? 0.5 : 0.1) * (seconds - found->second);
  }

  // 0 when nothing is known. Of numbers of rows not seen yet the least that it can be: so they are
  // tried, and found out. Never falls with the rows.
  double at(int32_t num_rows) const {
    double most = 0;
    for (const auto& [bucket, seconds] : seconds_) {
      if (bucket > bucket_of(num_rows)) break;
      most = seconds > most ? seconds : most;
    }
    return most;
  }

 private:
  // 4 to a doubling.
  static int32_t bucket_of(int32_t num_rows) {
    const int width = static_cast<int>(std::bit_width(static_cast<uint32_t>(num_rows)));
    const int shift = width > 3 ? width - 3 : 0;
    return 4 * shift + (num_rows >> shift);
  }

  std::map<int32_t, double> seconds_;
};

}  // namespace outrider
