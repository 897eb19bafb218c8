// Speculation with an acceptance known beforehand: a toy target and draft go through the program's
// own propose() and verify(), one round after the other, and what comes out is counted. Used by
// `theory_bench` and its tests; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/request.h"

namespace outrider {

// Two distributions over eight tokens, the same at every position, with sum of
// min(target_prob, draft_prob) = alpha. They share most tokens; some stand to each other above,
// some below 1, and some are proposed or wanted by one of the two alone.
struct ToyPair {
  double alpha = 0;
  std::vector<double> target_prob;
  std::vector<double> draft_prob;
};

// alpha in (0, 1); else throws Error.
ToyPair toy_pair(double alpha);

struct SimulationSpec {
  VerifyMode mode = VerifyMode::kStandard;
  int32_t draft_len = 1;
  int64_t num_rounds = 1;
  uint64_t seed = 0;
};

struct SimulatedRounds {
  double tokens_per_round = 0;  // accepted + 1
  double standard_error = 0;    // of it
};

SimulatedRounds simulate_rounds(const ToyPair& pair, const SimulationSpec& spec);

// What the formulas expect of it: eq. (1) with alpha, or with the coupled agreement; the
// expectation of block verification.
double expected_simulated_tokens(const ToyPair& pair, const SimulationSpec& spec);

}  // namespace outrider
