// See paper_formulas.h.
#include "tests/theory/paper_formulas.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/commands/bench/speedup_formulas.h"

namespace outrider {
namespace {

// P_i to 12 digits: products of the same ratios in another order are one value.
double rounded(double value) { return std::round(value * 1e12) / 1e12; }

}  // namespace

double expected_operations(double alpha, int draft_len) {
  return (draft_len + 1) / expected_tokens(alpha, draft_len);
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
