// When the requests of `bench serve` are sent: gamma-distributed gaps as in vLLM's `bench serve`.
// Pure; a seed gives the same times on every machine up to the last bits of libm.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/rng.h"

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

struct ArrivalSpec {
  double rate_per_s = 0;  // infinity = all at once
  // Shape of the gaps' gamma law, whose mean is 1 / rate: 1 = Poisson, below 1 = bursts, above 1 =
  // more even, infinity = constant gaps.
  double burstiness = 1;
  uint64_t seed = 0;
};

// Seconds from the run's start, ascending. As vLLM does, the gaps are scaled so that the last
// request leaves at count / rate: the offered load is the one asked for, whatever the seed.
std::vector<double> arrival_times(const ArrivalSpec& spec, int32_t count);

}  // namespace outrider
