// What the founding papers say speculation is worth, as functions: Leviathan et al., "Fast
// inference from transformers via speculative decoding" (arXiv 2211.17192), Daliri et al.
// (2408.07978) for the coupled rule, Sun et al. (2403.10444) for block verification. Pure; used by
// the benchmarks. alpha: chance that a draft token stands. draft_len: K, the paper's gamma.
// cost_ratio: c, time of a draft step over time of a target step.
#pragma once

#include <array>
#include <span>

namespace outrider {

// Eq. (1): (1 - alpha^(K+1)) / (1 - alpha), the mean of tokens per round when positions are
// independent and alike.
double expected_tokens(double alpha, int draft_len);

// Theorem 3.8: expected_tokens / (K c + 1), a verify taken to cost what a plain step costs.
double predicted_speedup(double alpha, double cost_ratio, int draft_len);

// Theorem 3.8 without its assumption: expected_tokens * plain / (verify + K draft), the times of a
// plain target step, of one with K + 1 rows and of a draft step, in any one unit.
struct StepTimes {
  double plain = 0;
  double verify = 0;
  double draft = 0;
};
double predicted_speedup(double alpha, int draft_len, const StepTimes& times);

// Theorem 3.11: target rows computed per token, (K + 1) / expected_tokens, times plain decoding's;
// the draft's own operations not counted.
double expected_operations(double alpha, int draft_len);

// The draft length of 0 .. most with the greatest predicted_speedup; the shortest of equals.
int best_draft_len(double alpha, double cost_ratio, int most);

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

// ---- of two distributions over the same tokens

// Theorem 3.5, beta: the chance that the standard rule accepts at this position.
double sum_of_minima(std::span<const double> target_prob, std::span<const double> draft_prob);

// Definition 3.2, D_LK: sum of |target_prob - M|, M the mean of the two; 1 - D_LK = beta.
double lk_distance(std::span<const double> target_prob, std::span<const double> draft_prob);

// The chance that the Gumbel maxima of the two agree under the same noise: sum over tokens i of
// 1 / sum_j max(t_j / t_i, d_j / d_i). O(n log n).
double coupled_agreement(std::span<const double> target_prob, std::span<const double> draft_prob);

// Mean accepted tokens of block verification when every position has these two distributions:
// sum over i = 1 .. K of E[P_i], P_i = min(P_{i-1} t(x_i) / d(x_i), 1), x_i drawn from the draft.
// Exact, by going through all values that P_i can take; for distributions with few distinct ratios.
double block_accepted(std::span<const double> target_prob,
                      std::span<const double> draft_prob,
                      int draft_len);

}  // namespace outrider
