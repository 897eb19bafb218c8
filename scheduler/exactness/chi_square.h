// Pearson's chi-square: whether counts fit an exact law, and how small a departure the test would
// have found. Called by the law tests and by `outrider verify`; plain functions on numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

struct ChiSquareRule {
  double upper_tail = 0.001;    // how often a right law fails
  double least_expected = 5.0;  // cells expected less often are pooled
};

struct ChiSquare {
  double statistic = 0.0;  // infinite when something happened that the law forbids
  int degrees = 0;
  double limit = 0.0;  // the quantile of the rule
  bool fits() const { return statistic <= limit; }
};

// observed and law: [cells]; law sums to 1. A cell that the law forbids must stay empty.
ChiSquare chi_square(const std::vector<uint64_t>& observed,
                     const std::vector<double>& law,
                     const ChiSquareRule& rule = {});

// The chance that chi-square with so many degrees exceeds the statistic, and its inverse.
double chi_square_tail(double statistic, int degrees);
double chi_square_quantile(int degrees, double upper_tail);

// The smallest total variation distance between the sampled law and the exact one (on the test's
// cells) that the test finds with 99% probability, whatever way they differ. Counts of a law at
// distance d have noncentrality N * sum (difference^2 / law), which is at least 4 N d^2 (Cauchy and
// Schwarz, with equality when every cell is off by the same share).
double smallest_found_distance(const ChiSquare& test, double num_samples);

}  // namespace outrider
