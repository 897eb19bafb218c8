// How many tokens each request of a wave is to bring. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

// max_tokens of each request: of several ones drawn with the ratio (random_length() in
// seeded_draws.h), since requests that end in one round are what no traffic has; of a single one
// just length.
std::vector<int32_t> output_lengths(int32_t num_requests,
                                    int32_t length,
                                    double ratio,
                                    uint64_t seed);

}  // namespace outrider
