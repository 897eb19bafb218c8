// See serve_arrivals.h.
#include "runtime/commands/bench/serve/serve_arrivals.h"

#include <cmath>
#include <numbers>

namespace outrider {
namespace {

constexpr uint32_t kArrivalStream = 1;

}  // namespace

uint32_t SeededDraws::bits() {
  if (index_ % 4 == 0) {
    const uint64_t block = index_ / 4;
    block_ = philox4x32_10(
        {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream_, 0}},
        static_cast<uint32_t>(seed_),
        static_cast<uint32_t>(seed_ >> 32));
  }
  return block_.lane[index_++ % 4];
}

uint32_t SeededDraws::below(uint32_t limit) {
  return static_cast<uint32_t>((static_cast<uint64_t>(bits()) * limit) >> 32);
}

int32_t SeededDraws::between(int32_t least, int32_t most) {
  return least + static_cast<int32_t>(below(static_cast<uint32_t>(most - least) + 1));
}

double SeededDraws::normal() {
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

double SeededDraws::gamma(double shape) {
  // A shape below 1 is drawn as shape + 1 and pulled towards 0 by a power of a uniform.
  if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal();
    const double base = 1 + c * x;
    if (base <= 0) continue;
    const double v = base * base * base;
    if (std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

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
