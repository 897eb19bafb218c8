// When the requests of `bench serve` are sent: gamma-distributed gaps as in vLLM's `bench serve`.
// Pure; a seed gives the same times on every machine up to the last bits of libm.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

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
