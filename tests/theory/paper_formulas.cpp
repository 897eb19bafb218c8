// See paper_formulas.h.
#include "tests/theory/paper_formulas.h"

#include <algorithm>
#include <cmath>
#include <map>

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
