// What a position more costs a step, from steps of about as many rows: least squares of how far
// they lie apart in time by how far they lie apart in positions read, positions attended to and
// rows. Times are noisy and drift with the machine; an unsure slope would be multiplied by tens of
// thousands of positions, so slopes count only as far as they stand out of what chance explains.
// Plain values; used by StepTimes.
#pragma once

#include <array>
#include <cstddef>

namespace outrider {

class PositionSlopes {
 public:
  // A step's distance from the average of the last such steps, in all four alike.
  struct Deviation {
    double kv_positions = 0;
    double row_positions = 0;
    double rows = 0;
    double seconds = 0;
  };
  void add(const Deviation& deviation);

  // Seconds per position read, and per position attended to by a row; never negative.
  const std::array<double, 2>& seconds() const { return slopes_; }

 private:
  static constexpr size_t kNumCauses = 3;
  static constexpr size_t kEffect = 3;  // seconds, the last of a deviation
  using Vector = std::array<double, kNumCauses>;
  Vector solve(const std::array<bool, kNumCauses>& counts) const;
  // What squares the slopes take from those of the seconds.
  double explained(const Vector& slopes) const;

  // Sums that decay: of steps, and of products of deviations.
  double num_ = 0;
  std::array<std::array<double, kNumCauses + 1>, kNumCauses + 1> products_{};
  std::array<double, 2> slopes_{};
};

}  // namespace outrider
