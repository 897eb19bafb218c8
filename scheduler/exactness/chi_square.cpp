// See chi_square.h.
#include "scheduler/exactness/chi_square.h"

#include <cmath>
#include <limits>

namespace outrider {

double chi_square_quantile_999(int degrees) {
  const double spread = 2.0 / (9.0 * degrees);
  const double root = 1.0 - spread + 3.090232306 * std::sqrt(spread);
  return degrees * root * root * root;
}

ChiSquare chi_square(const std::vector<uint64_t>& observed, const std::vector<double>& law) {
  double total = 0.0;
  for (uint64_t count : observed) total += static_cast<double>(count);
  ChiSquare test;
  double pooled_expected = 0.0;
  double pooled_observed = 0.0;
  int num_cells = 0;
  const auto add = [&](double expected, double count) {
    test.statistic += (count - expected) * (count - expected) / expected;
    ++num_cells;
  };
  for (size_t i = 0; i < law.size(); ++i) {
    const auto count = static_cast<double>(observed[i]);
    const double expected = law[i] * total;
    if (law[i] <= 0.0) {
      if (count > 0.0) test.statistic = std::numeric_limits<double>::infinity();
    } else if (expected < 5.0) {
      pooled_expected += expected;
      pooled_observed += count;
    } else {
      add(expected, count);
    }
  }
  if (pooled_expected >= 1.0) add(pooled_expected, pooled_observed);
  test.degrees = num_cells - 1;
  test.limit = chi_square_quantile_999(test.degrees > 0 ? test.degrees : 1);
  return test;
}

}  // namespace outrider
