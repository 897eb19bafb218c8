// Random numbers and lengths of the benchmarks: a seed gives the same ones on every machine, up to
// the last bits of libm where a law needs it. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/numbers/rng.h"

namespace outrider {

// Uniform numbers of one purpose, in order: Philox with the seed as key and the draw's number as
// counter. Streams of one seed are independent.
class SeededDraws {
 public:
  SeededDraws(uint64_t seed, uint32_t stream) : seed_(seed), stream_(stream) {}
  uint32_t bits();
  double uniform() { return uniform_from_bits(bits()); }  // in (0, 1)
  // In [0, limit), limit > 0.
  uint32_t below(uint32_t limit);
  double normal();                               // Box and Muller
  double gamma(double shape);                    // scale 1; Marsaglia and Tsang 2000, shape > 0
  int32_t between(int32_t least, int32_t most);  // both included

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint64_t index_ = 0;
  PhiloxBlock block_{};
};

// Tokens of a prompt or an answer: uniform among the whole numbers from length x (1 - ratio),
// rounded down, to length x (1 + ratio), rounded up, as vLLM's `bench serve --random-range-ratio`;
// at least 1.
int32_t random_length(int32_t length, double ratio, SeededDraws* draws);

// Of the requests of a wave: of several ones drawn, since requests that end in one round are what
// no traffic has; of a single one just length.
std::vector<int32_t> output_lengths(int32_t num_requests,
                                    int32_t length,
                                    double ratio,
                                    uint64_t seed);

}  // namespace outrider
