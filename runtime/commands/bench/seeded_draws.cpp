// See seeded_draws.h.
#include "runtime/commands/bench/seeded_draws.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace outrider {

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

int32_t random_length(int32_t length, double ratio, SeededDraws* draws) {
  const auto least = static_cast<int32_t>(std::floor(length * (1 - ratio)));
  const auto most = static_cast<int32_t>(std::ceil(length * (1 + ratio)));
  return std::max(1, draws->between(least, most));
}

std::vector<int32_t> output_lengths(int32_t num_requests,
                                    int32_t length,
                                    double ratio,
                                    uint64_t seed) {
  constexpr uint32_t kLengthStream = 5;
  if (num_requests == 1) return {length};
  SeededDraws draws(seed, kLengthStream);
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < num_requests; ++i)
    lengths.push_back(random_length(length, ratio, &draws));
  return lengths;
}

}  // namespace outrider
