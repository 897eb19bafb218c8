// See chi_square.h.
#include "scheduler/exactness/chi_square.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace outrider {
namespace {

constexpr double kFoundProbability = 0.99;

// log Gamma(degrees / 2) by the recurrence from Gamma(1) = 1 or Gamma(1/2) = sqrt(pi).
double log_gamma_of_half(int degrees) {
  double sum = degrees % 2 == 0 ? 0.0 : 0.5 * std::log(std::numbers::pi);
  for (int d = degrees % 2 == 0 ? 2 : 1; d < degrees; d += 2) sum += std::log(d / 2.0);
  return sum;
}

// x^a e^-x / Gamma(a + 1) times the series of the lower incomplete gamma function.
double lower_tail_series(double a, double x, double log_front) {
  double term = 1.0 / a;
  double sum = term;
  for (double n = a + 1.0; term > sum * 1e-17; n += 1.0) {
    term *= x / n;
    sum += term;
  }
  return std::exp(log_front) * sum;
}

// Lentz's form of the continued fraction of the upper incomplete gamma function.
double upper_tail_fraction(double a, double x, double log_front) {
  double b = x + 1.0 - a;
  double c = 1e300;
  double d = 1.0 / b;
  double value = d;
  for (int i = 1; i < 10000; ++i) {
    const double factor = -i * (i - a);
    b += 2.0;
    d = 1.0 / (factor * d + b);
    c = b + factor / c;
    const double change = c * d;
    value *= change;
    if (std::abs(change - 1.0) < 1e-15) break;
  }
  return std::exp(log_front) * value;
}

// The chance that noncentral chi-square exceeds the limit: a Poisson mixture of central ones.
double noncentral_tail(double limit, int degrees, double noncentrality) {
  const double mean = noncentrality / 2.0;
  double log_weight = -mean;
  double sum = 0.0;
  const int last = static_cast<int>(mean + 12.0 * std::sqrt(mean) + 30.0);
  for (int j = 0; j <= last; ++j) {
    if (j > 0) log_weight += std::log(mean / j);
    sum += std::exp(log_weight) * chi_square_tail(limit, degrees + 2 * j);
  }
  return sum;
}

// The least x with is_large_enough(x), for a condition that stays true from somewhere on.
template <typename Condition>
double least(double high, Condition is_large_enough) {
  while (!is_large_enough(high)) high *= 2.0;
  double low = 0.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (is_large_enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

double chi_square_tail(double statistic, int degrees) {
  if (!(statistic > 0.0)) return 1.0;
  if (std::isinf(statistic)) return 0.0;
  const double a = degrees / 2.0;
  const double x = statistic / 2.0;
  const double log_front = a * std::log(x) - x - log_gamma_of_half(degrees);
  if (x < a + 1.0) return 1.0 - lower_tail_series(a, x, log_front);
  return upper_tail_fraction(a, x, log_front);
}

double chi_square_quantile(int degrees, double upper_tail) {
  return least(2.0 * degrees + 10.0,
               [&](double x) { return chi_square_tail(x, degrees) <= upper_tail; });
}

ChiSquare chi_square(const std::vector<uint64_t>& observed,
                     const std::vector<double>& law,
                     const ChiSquareRule& rule) {
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
    } else if (expected < rule.least_expected) {
      pooled_expected += expected;
      pooled_observed += count;
    } else {
      add(expected, count);
    }
  }
  if (pooled_expected >= rule.least_expected / 5.0) add(pooled_expected, pooled_observed);
  test.degrees = num_cells - 1;
  test.limit = chi_square_quantile(test.degrees > 0 ? test.degrees : 1, rule.upper_tail);
  return test;
}

double smallest_found_distance(const ChiSquare& test, double num_samples) {
  const double noncentrality = least(test.limit, [&](double x) {
    return noncentral_tail(test.limit, test.degrees, x) >= kFoundProbability;
  });
  return std::sqrt(noncentrality / (4.0 * num_samples));
}

}  // namespace outrider
