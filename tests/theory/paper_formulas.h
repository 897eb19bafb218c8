// What the founding papers and the design say beyond the program's own formulas: Leviathan et al.
// (arXiv 2211.17192), Sun et al. (2403.10444) for block verification. Pure; alpha, draft_len and
// cost_ratio as in speedup_formulas.h.
#pragma once

#include <array>
#include <span>

namespace outrider {

// Theorem 3.11: target rows computed per token, (K + 1) / expected_tokens, times plain decoding's;
// the draft's own operations not counted.
double expected_operations(double alpha, int draft_len);

// A row of the paper's table of (alpha, gamma): factors of operations and of speed at c = 0.
struct PublishedFactors {
  double alpha;
  int draft_len;
  double operations;
  double speed;
};
inline constexpr std::array<PublishedFactors, 6> kPublishedFactors = {{
    {0.6, 2, 1.53, 1.96},
    {0.7, 3, 1.58, 2.53},
    {0.8, 2, 1.23, 2.44},
    {0.8, 5, 1.63, 3.69},
    {0.9, 2, 1.11, 2.71},
    {0.9, 10, 1.60, 6.86},
}};

// best_cache at hit rate 1: expected_tokens of its blocks, whatever c is.
double cache_ceiling(double alpha, double cost_ratio);

// The design's table, to the two decimals it gives.
struct DesignSpeedups {
  double alpha;
  double cost_ratio;
  double synchronous;
  int draft_len;  // of the best synchronous one
  double chain;
  double cache_80;  // hit rate 0.8
  double cache_90;
  double ceiling;
};
inline constexpr std::array<DesignSpeedups, 6> kDesignSpeedups = {{
    {0.6, 0.05, 1.92, 4, 1.96, 2.36, 2.43, 2.50},
    {0.7, 0.10, 1.98, 4, 2.16, 2.94, 3.10, 3.27},
    {0.8, 0.05, 3.09, 8, 3.31, 4.31, 4.51, 4.73},
    {0.8, 0.10, 2.47, 6, 2.86, 4.01, 4.28, 4.57},
    {0.8, 0.20, 1.87, 4, 2.42, 3.18, 3.43, 3.69},
    {0.9, 0.10, 3.43, 10, 4.43, 5.84, 6.33, 6.86},
}};

// ---- of two distributions over the same tokens

// Theorem 3.5, beta: the chance that the standard rule accepts at this position.
double sum_of_minima(std::span<const double> target_prob, std::span<const double> draft_prob);

// Definition 3.2, D_LK: sum of |target_prob - M|, M the mean of the two; 1 - D_LK = beta.
double lk_distance(std::span<const double> target_prob, std::span<const double> draft_prob);

// Mean accepted tokens of block verification when every position has these two distributions:
// sum over i = 1 .. K of E[P_i], P_i = min(P_{i-1} t(x_i) / d(x_i), 1), x_i drawn from the draft.
// Exact, by going through all values that P_i can take; for distributions with few distinct ratios.
double block_accepted(std::span<const double> target_prob,
                      std::span<const double> draft_prob,
                      int draft_len);

}  // namespace outrider
