// See bench_statistics.h.
#include "runtime/commands/bench/report/bench_statistics.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kConfidence = 0.95;
constexpr uint64_t kSeed = 20240607;
constexpr size_t kMostResamples = 2000;
constexpr size_t kLeastResamples = 400;
constexpr size_t kMostDraws = 8'000'000;  // long lists are resampled less often, to stay under 1 s

// values is reordered.
double quantile_of(std::vector<double>& values, double share) {
  if (values.empty()) return kNone;
  const double place = std::clamp(share, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  const double low = *at;
  const double rest = place - static_cast<double>(below);
  if (!(rest > 0)) return low;
  return low + rest * (*std::min_element(at + 1, values.end()) - low);
}

void draw_resample(std::span<const double> samples, uint32_t number, std::vector<double>* drawn) {
  const auto size = static_cast<uint64_t>(samples.size());
  for (size_t i = 0; i < samples.size(); i += 4) {
    const PhiloxBlock noise = philox4x32_10({{static_cast<uint32_t>(i / 4), number, 0, 0}},
                                            static_cast<uint32_t>(kSeed),
                                            static_cast<uint32_t>(kSeed >> 32));
    for (size_t lane = 0; lane < 4 && i + lane < samples.size(); ++lane)
      (*drawn)[i + lane] = samples[(noise.lane[lane] * size) >> 32];
  }
}

}  // namespace

double quantile(std::vector<double> values, double share) { return quantile_of(values, share); }

double median(std::vector<double> values) { return values.empty() ? 0 : quantile_of(values, 0.5); }

double mean(std::span<const double> values) {
  if (values.empty()) return kNone;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Interval bootstrap_median(std::span<const double> samples) {
  Interval interval{quantile({samples.begin(), samples.end()}, 0.5), kNone, kNone};
  if (samples.size() < 2) return interval;
  const size_t num_resamples =
      std::clamp(kMostDraws / samples.size(), kLeastResamples, kMostResamples);
  std::vector<double> drawn(samples.size());
  std::vector<double> medians;
  medians.reserve(num_resamples);
  for (size_t i = 0; i < num_resamples; ++i) {
    draw_resample(samples, static_cast<uint32_t>(i), &drawn);
    medians.push_back(quantile_of(drawn, 0.5));
  }
  interval.low = quantile_of(medians, (1 - kConfidence) / 2);
  interval.high = quantile_of(medians, (1 + kConfidence) / 2);
  return interval;
}

std::vector<double> pair_ratios(std::span<const double> numerators,
                                std::span<const double> denominators) {
  OUTRIDER_CHECK(numerators.size() == denominators.size());
  std::vector<double> ratios(numerators.size());
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = numerators[i] / denominators[i];
  return ratios;
}

Interval bootstrap_ratio(std::span<const double> numerators, std::span<const double> denominators) {
  return bootstrap_median(pair_ratios(numerators, denominators));
}

}  // namespace outrider
