// Summaries of samples: quantiles, and bootstrap intervals of medians and of ratios of pairs. Pure;
// used by every benchmark.
#pragma once

#include <span>
#include <vector>

namespace outrider {

// Of the sorted values v[0..n-1], linear between the two around share * (n - 1), share in [0, 1]
// (Hyndman and Fan's definition 7, numpy's default): 0 is the least, 0.5 the median, 1 the
// greatest. NaN of nothing.
double quantile(std::vector<double> values, double share);

// quantile(values, 0.5), but 0 of nothing.
double median(std::vector<double> values);

double mean(std::span<const double> values);  // NaN of nothing

// A figure and where it would lie in 95 of 100 repetitions; low and high are NaN where fewer than
// two samples cannot say.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
};

// The median and its percentile bootstrap interval (Efron 1979): medians of resamples drawn with
// replacement, between their quantiles 0.025 and 0.975. The noise is fixed: the same samples give
// the same interval.
Interval bootstrap_median(std::span<const double> samples);

// Median of numerators[i] / denominators[i], samples taken in turns, and its interval: what
// disturbs both of a pair cancels. Sizes must be equal.
Interval bootstrap_ratio(std::span<const double> numerators, std::span<const double> denominators);

// numerators[i] / denominators[i].
std::vector<double> pair_ratios(std::span<const double> numerators,
                                std::span<const double> denominators);

}  // namespace outrider
