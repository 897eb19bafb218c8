// See theory_formulas.h.
#include "runtime/commands/bench/theory/theory_formulas.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// P_i to 12 digits: products of the same ratios in another order are one value.
double rounded(double value) { return std::round(value * 1e12) / 1e12; }

}  // namespace

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

double expected_operations(double alpha, int draft_len) {
  return (draft_len + 1) / expected_tokens(alpha, draft_len);
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

double cache_ceiling(double alpha, double cost_ratio) {
  return best_cache(alpha, cost_ratio, 1).speedup;
}

double sum_of_minima(std::span<const double> target_prob, std::span<const double> draft_prob) {
  OUTRIDER_CHECK(target_prob.size() == draft_prob.size());
  double sum = 0;
  for (size_t i = 0; i < target_prob.size(); ++i) sum += std::min(target_prob[i], draft_prob[i]);
  return sum;
}

double lk_distance(std::span<const double> target_prob, std::span<const double> draft_prob) {
  OUTRIDER_CHECK(target_prob.size() == draft_prob.size());
  double sum = 0;
  for (size_t i = 0; i < target_prob.size(); ++i) {
    sum += std::abs(target_prob[i] - (target_prob[i] + draft_prob[i]) / 2);
  }
  return sum;
}

// max(t_j / t_i, d_j / d_i) is the first where t_j / d_j >= t_i / d_i, else the second. So in the
// order of t / d the inner sum is a tail of the t over t_i and a head of the d over d_i.
double coupled_agreement(std::span<const double> target_prob, std::span<const double> draft_prob) {
  OUTRIDER_CHECK(target_prob.size() == draft_prob.size());
  struct Pair {
    double target, draft;
  };
  std::vector<Pair> pairs;
  for (size_t i = 0; i < target_prob.size(); ++i) {
    if (target_prob[i] > 0 || draft_prob[i] > 0) pairs.push_back({target_prob[i], draft_prob[i]});
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return a.target * b.draft < b.target * a.draft;
  });
  double target_from_here = 0;
  for (const Pair& pair : pairs) target_from_here += pair.target;
  double draft_before = 0;
  double agreement = 0;
  for (const Pair& pair : pairs) {
    if (pair.target > 0 && pair.draft > 0) {
      // Not below its own last term, whatever rounding has left.
      const double tail = std::max(target_from_here, pair.target);
      agreement += 1 / (tail / pair.target + draft_before / pair.draft);
    }
    target_from_here -= pair.target;
    draft_before += pair.draft;
  }
  return agreement;
}

double block_accepted(std::span<const double> target_prob,
                      std::span<const double> draft_prob,
                      int draft_len) {
  OUTRIDER_CHECK(target_prob.size() == draft_prob.size());
  std::map<double, double> chance_of = {{1.0, 1.0}};  // of each value of P_i
  double accepted = 0;
  for (int i = 0; i < draft_len; ++i) {
    std::map<double, double> next;
    for (const auto& [value, chance] : chance_of) {
      for (size_t v = 0; v < draft_prob.size(); ++v) {
        if (!(draft_prob[v] > 0)) continue;
        const double grown = std::min(value * target_prob[v] / draft_prob[v], 1.0);
        next[rounded(grown)] += chance * draft_prob[v];
      }
    }
    chance_of = std::move(next);
    for (const auto& [value, chance] : chance_of) accepted += value * chance;
  }
  return accepted;
}

}  // namespace outrider
