// Pearson's chi-square: whether counts fit an exact law. Called by the law tests and by `outrider
// verify`; plain functions on numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

struct ChiSquare {
  double statistic = 0.0;  // infinite when something happened that the law forbids
  int degrees = 0;
  double limit = 0.0;  // 99.9% quantile
  bool fits() const { return statistic <= limit; }
};

// The 99.9% quantile, by Wilson and Hilferty (1931): the cube root of chi-square over its degrees
// is close to normal.
double chi_square_quantile_999(int degrees);

// observed and law: [cells]; law sums to 1. Cells expected fewer than 5 times are pooled; one that
// the law forbids must stay empty.
ChiSquare chi_square(const std::vector<uint64_t>& observed, const std::vector<double>& law);

}  // namespace outrider
