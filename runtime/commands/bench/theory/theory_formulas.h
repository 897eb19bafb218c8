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
struct PairStepTimes {
  double plain = 0;
  double verify = 0;
  double draft = 0;
};
double predicted_speedup(double alpha, int draft_len, const PairStepTimes& times);

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

// ---- asynchronous drafting: the model of docs/architecture.md, section 4.3. Times in target
// steps, a verify taken to cost what a plain step costs; positions independent and alike.

// The longest block that is drafted while the target makes one step: 1 / c.
int longest_ready_block(double cost_ratio);

// Tokens per target step when the draft goes on with its one chain while the target verifies. After
// a rejection the target waits for num_waited tokens; when all of them and the proposal for the
// bonus position stand, draft_len more are ready at once, and so on until the next rejection. From
// one rejection to the next come 1 / (1 - alpha) tokens in 1 + num_waited c +
// alpha^(num_waited + 1) / (1 - alpha^(draft_len + 1)) steps.
double chain_speedup(double alpha, double cost_ratio, int num_waited, int draft_len);

struct ChainChoice {
  int num_waited = 0;
  int draft_len = 0;  // longest_ready_block
  double speedup = 0;
};
// The number waited for with the greatest chain_speedup; the smallest of equals.
ChainChoice best_chain(double alpha, double cost_ratio);

// With prepared outcomes: [h E_hit + (1 - h) E_miss] / [h max(1, T_p) + (1 - h)(1 + T_b)].
struct CacheRound {
  double hit_rate = 0;      // h
  double hit_tokens = 0;    // E_hit, per round
  double miss_tokens = 0;   // E_miss
  double primary_time = 0;  // T_p, to draft a block while the target verifies
  double backup_time = 0;   // T_b, to draft one after a miss, while the target waits
};
double cache_speedup(const CacheRound& round);

struct CacheChoice {
  int draft_len = 0;   // after a hit
  int backup_len = 0;  // after a miss, made for it
  double speedup = 0;
};
// Blocks of min(1 / c, kLongestPrepared) after a hit, and after a miss of the length that gives the
// greatest cache_speedup; the shortest of equals.
inline constexpr int kLongestPrepared = 12;
CacheChoice best_cache(double alpha, double cost_ratio, double hit_rate);

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
