// See serve_arrivals.h.
#include "runtime/commands/bench/serve/serve_arrivals.h"

#include <cmath>

#include "runtime/commands/bench/seeded_draws.h"

namespace outrider {
namespace {

constexpr uint32_t kArrivalStream = 1;

}  // namespace

std::vector<double> arrival_times(const ArrivalSpec& spec, int32_t count) {
  std::vector<double> times(static_cast<size_t>(count), 0.0);
  if (count == 0 || std::isinf(spec.rate_per_s)) return times;
  SeededDraws draws(spec.seed, kArrivalStream);
  double now = 0;
  for (double& time : times) {
    const bool constant = std::isinf(spec.burstiness);
    now += constant ? 1 : draws.gamma(spec.burstiness) / spec.burstiness;
    time = now;
  }
  // With a very small burstiness every gap may underflow to zero.
  const double scale = now > 0 ? count / spec.rate_per_s / now : 0;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace outrider
