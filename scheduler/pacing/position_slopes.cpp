// See position_slopes.h.
#include "scheduler/pacing/position_slopes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

// Squares of deviations that make up for one lucky step: a hundred positions, a row.
constexpr std::array<double, 3> kRidge = {1e4, 1e4, 1};

}  // namespace

void PositionSlopes::add(const Deviation& deviation) {
  const std::array<double, kNumCauses + 1> values = {
      deviation.kv_positions, deviation.row_positions, deviation.rows, deviation.seconds};
  const double kept = 1 - 1 / pacing.step_memory;
  num_ = kept * num_ + 1;
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < values.size(); ++j)
      products_[i][j] = kept * products_[i][j] + values[i] * values[j];
  }
  // A step does not get shorter with more to read: then the other one explains it all.
  Vector slopes = solve({true, true, true});
  if (slopes[0] < 0 || slopes[1] < 0) slopes = solve({slopes[0] >= 0, slopes[1] >= 0, true});
  if (slopes[0] < 0 || slopes[1] < 0) slopes = {};
  const double by_positions = explained(slopes) - explained({0, 0, slopes[2]});
  const double left = std::max(0.0, products_[kEffect][kEffect] - explained(slopes));
  const double by_chance = pacing.slope_chance * left / num_;
  const double share = by_positions > by_chance ? (by_positions - by_chance) / by_positions : 0.0;
  slopes_ = {share * slopes[0], share * slopes[1]};
}

double PositionSlopes::explained(const Vector& slopes) const {
  double squares = 0;
  for (size_t i = 0; i < kNumCauses; ++i) {
    squares += 2 * slopes[i] * products_[i][kEffect];
    for (size_t j = 0; j < kNumCauses; ++j) squares -= slopes[i] * slopes[j] * products_[i][j];
  }
  return squares;
}

// By elimination; the ridge keeps the pivots away from 0. Slopes that do not count are 0.
PositionSlopes::Vector PositionSlopes::solve(const std::array<bool, kNumCauses>& counts) const {
  std::array<std::array<double, kNumCauses + 1>, kNumCauses> rows{};
  for (size_t i = 0; i < kNumCauses; ++i) {
    for (size_t j = 0; j <= kNumCauses; ++j) {
      const bool is_in = counts[i] && (j == kEffect || counts[j]);
      if (is_in) rows[i][j] = products_[i][j];
    }
    rows[i][i] += kRidge[i];
  }
  for (size_t pivot = 0; pivot < kNumCauses; ++pivot) {
    for (size_t i = 0; i < kNumCauses; ++i) {
      if (i == pivot) continue;
      const double factor = rows[i][pivot] / rows[pivot][pivot];
      for (size_t j = pivot; j <= kNumCauses; ++j) rows[i][j] -= factor * rows[pivot][j];
    }
  }
  Vector slopes{};
  for (size_t i = 0; i < kNumCauses; ++i) slopes[i] = rows[i][kEffect] / rows[i][i];
  return slopes;
}

}  // namespace outrider
