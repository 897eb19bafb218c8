// See speedup_formulas.h.
#include "runtime/commands/bench/speedup_formulas.h"

#include <algorithm>
#include <cmath>

namespace outrider {

double expected_tokens(double alpha, int draft_len) {
  if (alpha >= 1) return draft_len + 1;
  return (1 - std::pow(alpha, draft_len + 1)) / (1 - alpha);
}

double predicted_speedup(double alpha, double cost_ratio, int draft_len) {
  return expected_tokens(alpha, draft_len) / (draft_len * cost_ratio + 1);
}

double predicted_speedup(double alpha, int draft_len, const PairStepTimes& times) {
  return expected_tokens(alpha, draft_len) * times.plain / (times.verify + draft_len * times.draft);
}

int best_draft_len(double alpha, double cost_ratio, int most) {
  int best = 0;
  for (int draft_len = 1; draft_len <= most; ++draft_len) {
    if (predicted_speedup(alpha, cost_ratio, draft_len) >
        predicted_speedup(alpha, cost_ratio, best)) {
      best = draft_len;
    }
  }
  return best;
}

int longest_ready_block(double cost_ratio) {
  constexpr double kMost = 1000;  // of a draft that costs nothing
  return static_cast<int>(std::min(1 / std::max(cost_ratio, 1 / kMost) + 1e-9, kMost));
}

double chain_speedup(double alpha, double cost_ratio, int num_waited, int draft_len) {
  if (alpha >= 1) return draft_len + 1;  // no rejection ends the chain
  const double later_steps = std::pow(alpha, num_waited + 1) / (1 - std::pow(alpha, draft_len + 1));
  return 1 / ((1 - alpha) * (1 + num_waited * cost_ratio + later_steps));
}

ChainChoice best_chain(double alpha, double cost_ratio) {
  ChainChoice best;
  best.draft_len = longest_ready_block(cost_ratio);
  best.speedup = chain_speedup(alpha, cost_ratio, 0, best.draft_len);
  for (int num_waited = 1; num_waited <= best.draft_len; ++num_waited) {
    const double speedup = chain_speedup(alpha, cost_ratio, num_waited, best.draft_len);
    if (speedup <= best.speedup) continue;
    best.num_waited = num_waited;
    best.speedup = speedup;
  }
  return best;
}

double cache_speedup(const CacheRound& round) {
  const double miss_rate = 1 - round.hit_rate;
  return (round.hit_rate * round.hit_tokens + miss_rate * round.miss_tokens) /
         (round.hit_rate * std::max(1.0, round.primary_time) + miss_rate * (1 + round.backup_time));
}

CacheChoice best_cache(double alpha, double cost_ratio, double hit_rate) {
  CacheChoice best;
  best.draft_len = std::min(longest_ready_block(cost_ratio), kLongestPrepared);
  for (int backup_len = 0; backup_len <= best.draft_len; ++backup_len) {
    const double speedup = cache_speedup({.hit_rate = hit_rate,
                                          .hit_tokens = expected_tokens(alpha, best.draft_len),
                                          .miss_tokens = expected_tokens(alpha, backup_len),
                                          .primary_time = best.draft_len * cost_ratio,
                                          .backup_time = backup_len * cost_ratio});
    if (speedup <= best.speedup) continue;
    best.backup_len = backup_len;
    best.speedup = speedup;
  }
  return best;
}

}  // namespace outrider
