// What speculation is worth, as formulas: Leviathan et al., "Fast inference from transformers via
// speculative decoding" (arXiv 2211.17192), and the model of asynchronous drafting. Pure; used by
// `plan` and the benchmarks. alpha: chance that a draft token stands. draft_len: K, the paper's
// gamma. cost_ratio: c, time of a draft step over time of a target step.
#pragma once

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

// The draft length of 0 .. most with the greatest predicted_speedup; the shortest of equals.
int best_draft_len(double alpha, double cost_ratio, int most);

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

}  // namespace outrider
