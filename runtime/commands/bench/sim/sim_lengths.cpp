// See sim_lengths.h.
#include "runtime/commands/bench/sim/sim_lengths.h"

#include "runtime/commands/bench/seeded_draws.h"

namespace outrider {
namespace {

constexpr uint32_t kLengthStream = 5;

}  // namespace

std::vector<int32_t> output_lengths(int32_t num_requests,
                                    int32_t length,
                                    double ratio,
                                    uint64_t seed) {
  if (num_requests == 1) return {length};
  SeededDraws draws(seed, kLengthStream);
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < num_requests; ++i)
    lengths.push_back(random_length(length, ratio, &draws));
  return lengths;
}

}  // namespace outrider
