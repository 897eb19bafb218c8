// The formulas of `theory_bench` against brute force and the papers' own figures, and the program's
// propose() and verify() against the formulas at acceptances known beforehand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/base/error.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "scheduler/exactness/law_cases.h"
#include "tests/theory/paper_formulas.h"
#include "tests/theory/theory_simulation.h"

namespace outrider {
namespace {

using Probs = std::vector<double>;

Probs random_probs(size_t size, std::mt19937_64& generator) {
  std::exponential_distribution<double> weight;
  std::bernoulli_distribution absent(0.2);
  Probs probs(size);
  double sum = 0;
  for (double& prob : probs) sum += prob = absent(generator) ? 0 : weight(generator);
  if (!(sum > 0)) sum = probs[0] = 1;
  for (double& prob : probs) prob /= sum;
  return probs;
}

// ---- formulas

TEST(TheoryFormulas, ExpectedTokensIsTheSumOverAcceptedLengths) {
  for (double alpha : {0.0, 0.1, 0.6, 0.95, 1.0}) {
    for (int draft_len = 0; draft_len <= 12; ++draft_len) {
      double sum = 0;
      for (int accepted = 0; accepted < draft_len; ++accepted) {
        sum += (accepted + 1) * std::pow(alpha, accepted) * (1 - alpha);
      }
      sum += (draft_len + 1) * std::pow(alpha, draft_len);
      EXPECT_NEAR(expected_tokens(alpha, draft_len), sum, 1e-12) << alpha << " " << draft_len;
    }
  }
}

TEST(TheoryFormulas, ThePublishedTableComesOutToItsDigits) {
  for (const PublishedFactors& row : kPublishedFactors) {
    EXPECT_NEAR(predicted_speedup(row.alpha, 0, row.draft_len), row.speed, 0.00501);
    EXPECT_NEAR(expected_operations(row.alpha, row.draft_len), row.operations, 0.00501);
  }
}

TEST(TheoryFormulas, BestDraftLenIsTheGreatestOfAll) {
  EXPECT_EQ(best_draft_len(0.8, 0.10, 20), 6);  // architecture's table
  EXPECT_EQ(best_draft_len(0.6, 0.05, 20), 4);
  EXPECT_EQ(best_draft_len(0.9, 0.10, 20), 10);
  EXPECT_EQ(best_draft_len(0.2, 0.5, 20), 0);  // corollary 3.9: no gain unless alpha > c
  EXPECT_EQ(best_draft_len(0.8, 0.0, 7), 7);
  for (double alpha : {0.3, 0.7, 0.95}) {
    for (double cost : {0.01, 0.2, 0.6}) {
      const double best = predicted_speedup(alpha, cost, best_draft_len(alpha, cost, 30));
      for (int draft_len = 0; draft_len <= 30; ++draft_len) {
        EXPECT_GE(best, predicted_speedup(alpha, cost, draft_len));
      }
    }
  }
}

// Asynchronous drafting: every column of the design's table, with the lengths that give it.
TEST(TheoryFormulas, TheDesignsTableComesOutToItsDigits) {
  constexpr double kHalfDigit = 0.00501;
  for (const DesignSpeedups& row : kDesignSpeedups) {
    const std::string name = fmt::format("alpha {} c {}", row.alpha, row.cost_ratio);
    const int draft_len = best_draft_len(row.alpha, row.cost_ratio, 40);
    EXPECT_EQ(draft_len, row.draft_len) << name;
    const double synchronous = predicted_speedup(row.alpha, row.cost_ratio, draft_len);
    EXPECT_NEAR(synchronous, row.synchronous, kHalfDigit) << name;
    const ChainChoice chain = best_chain(row.alpha, row.cost_ratio);
    EXPECT_EQ(chain.draft_len, std::lround(1 / row.cost_ratio)) << name;
    EXPECT_NEAR(chain.speedup, row.chain, kHalfDigit) << name << " waits " << chain.num_waited;
    EXPECT_GE(chain.speedup, synchronous) << name;
    EXPECT_NEAR(best_cache(row.alpha, row.cost_ratio, 0.8).speedup, row.cache_80, kHalfDigit)
        << name;
    EXPECT_NEAR(best_cache(row.alpha, row.cost_ratio, 0.9).speedup, row.cache_90, kHalfDigit)
        << name;
    EXPECT_NEAR(cache_ceiling(row.alpha, row.cost_ratio), row.ceiling, kHalfDigit) << name;
  }
  EXPECT_EQ(best_chain(0.6, 0.05).num_waited, 4);
  EXPECT_EQ(best_chain(0.8, 0.05).num_waited, 6);
  EXPECT_EQ(best_chain(0.8, 0.20).num_waited, 1);
  EXPECT_EQ(best_cache(0.8, 0.10, 0.8).backup_len, 4);
}

// The chain as it runs: rounds of draws until many rejections have come.
TEST(TheoryFormulas, TheChainsSpeedupIsWhatItsRoundsGive) {
  std::mt19937_64 generator(7);
  for (double alpha : {0.5, 0.8, 0.95}) {
    for (int num_waited : {0, 2, 5}) {
      constexpr double kCost = 0.1;
      constexpr int kDraftLen = 8;
      std::bernoulli_distribution stands(alpha);
      double num_tokens = 0;
      double steps = 0;
      int ready = 0;
      for (int round = 0; round < 200000; ++round) {
        const int draft_len = ready > 0 ? ready : num_waited;
        steps += 1 + (ready > 0 ? 0 : num_waited * kCost);
        int num_standing = 0;  // the bonus draft token is the last that may
        while (num_standing <= draft_len && stands(generator)) ++num_standing;
        num_tokens += std::min(num_standing, draft_len) + 1;
        ready = num_standing > draft_len ? kDraftLen : 0;
      }
      const double formula = chain_speedup(alpha, kCost, num_waited, kDraftLen);
      EXPECT_NEAR(num_tokens / steps, formula, 0.01 * formula) << alpha << " " << num_waited;
    }
  }
}

TEST(TheoryFormulas, AsyncDraftingAtItsEdges) {
  EXPECT_EQ(longest_ready_block(0.1), 10);
  EXPECT_EQ(longest_ready_block(1.0), 1);
  EXPECT_EQ(longest_ready_block(2.5), 0);
  EXPECT_EQ(longest_ready_block(0.0), 1000);
  EXPECT_EQ(chain_speedup(1.0, 0.1, 0, 10), 11);
  EXPECT_DOUBLE_EQ(chain_speedup(0.0, 0.1, 0, 10), 1.0);
  EXPECT_DOUBLE_EQ(best_chain(0.0, 0.1).speedup, 1.0);
  EXPECT_DOUBLE_EQ(best_cache(0.0, 0.1, 0.5).speedup, 1.0);
  EXPECT_EQ(best_cache(0.0, 0.1, 0.5).backup_len, 0);
  // The formula of the design, by hand: (.8 * 3 + .2 * 2) / (.8 * 1.5 + .2 * 1.25).
  EXPECT_DOUBLE_EQ(cache_speedup({.hit_rate = 0.8,
                                  .hit_tokens = 3,
                                  .miss_tokens = 2,
                                  .primary_time = 1.5,
                                  .backup_time = 0.25}),
                   2.8 / 1.45);
}

TEST(TheoryFormulas, AcceptanceIsOneLessTheDistance) {
  std::mt19937_64 generator(1);
  double least = 1;
  double most = 0;
  for (int i = 0; i < 200; ++i) {
    const Probs target = random_probs(12, generator);
    const Probs draft = random_probs(12, generator);
    const double beta = sum_of_minima(target, draft);
    EXPECT_NEAR(beta, 1 - lk_distance(target, draft), 1e-12);
    EXPECT_NEAR(lk_distance(target, draft), lk_distance(draft, target), 1e-12);
    least = std::min(least, beta);
    most = std::max(most, beta);
  }
  EXPECT_GT(most - least, 0.2);
  EXPECT_EQ(lk_distance(Probs{0.25, 0.75}, Probs{0.25, 0.75}), 0.0);
  EXPECT_EQ(lk_distance(Probs{1, 0}, Probs{0, 1}), 1.0);
}

TEST(TheoryFormulas, CoupledAgreementIsTheDoubleSum) {
  std::mt19937_64 generator(2);
  for (int i = 0; i < 300; ++i) {
    const Probs target = random_probs(2 + i % 20, generator);
    const Probs draft = i % 10 == 0 ? target : random_probs(target.size(), generator);
    double expected = 0;
    for (size_t a = 0; a < target.size(); ++a) {
      if (!(target[a] > 0 && draft[a] > 0)) continue;
      double sum = 0;
      for (size_t b = 0; b < target.size(); ++b) {
        sum += std::max(target[b] / target[a], draft[b] / draft[a]);
      }
      expected += 1 / sum;
    }
    const double agreement = coupled_agreement(target, draft);
    EXPECT_NEAR(agreement, expected, 1e-12);
    // Daliri et al.: at least (1 - TV) / (1 + TV); and no coupling passes 1 - TV.
    const double distance = lk_distance(target, draft);
    EXPECT_GE(agreement, (1 - distance) / (1 + distance) - 1e-12);
    EXPECT_LE(agreement, 1 - distance + 1e-12);
  }
  EXPECT_NEAR(coupled_agreement(Probs{0.2, 0.8}, Probs{0.2, 0.8}), 1.0, 1e-12);
  EXPECT_EQ(coupled_agreement(Probs{1, 0}, Probs{0, 1}), 0.0);
}

// All draft paths of the given length, one by one.
double block_by_enumeration(const Probs& target, const Probs& draft, int draft_len) {
  double accepted = 0;
  size_t num_paths = 1;
  for (int i = 0; i < draft_len; ++i) num_paths *= draft.size();
  for (size_t path = 0; path < num_paths; ++path) {
    double chance = 1;
    double survival = 1;
    double sum = 0;
    for (size_t i = 0, rest = path; i < static_cast<size_t>(draft_len); ++i) {
      const size_t token = rest % draft.size();
      rest /= draft.size();
      chance *= draft[token];
      if (chance == 0) break;
      survival = std::min(survival * target[token] / draft[token], 1.0);
      sum += survival;
    }
    accepted += chance * sum;
  }
  return accepted;
}

TEST(TheoryFormulas, BlockExpectationIsTheSumOverPaths) {
  // The worked example of the paper: 10/9 by tokens, 11/9 by blocks.
  const Probs target = {1.0 / 3, 2.0 / 3};
  const Probs draft = {2.0 / 3, 1.0 / 3};
  EXPECT_NEAR(block_accepted(target, draft, 2), 11.0 / 9, 1e-9);
  EXPECT_NEAR(expected_tokens(sum_of_minima(target, draft), 2) - 1, 10.0 / 9, 1e-12);
  std::mt19937_64 generator(3);
  for (int i = 0; i < 20; ++i) {
    const Probs a = random_probs(4, generator);
    const Probs b = random_probs(4, generator);
    for (int draft_len = 1; draft_len <= 5; ++draft_len) {
      const double accepted = block_accepted(a, b, draft_len);
      EXPECT_NEAR(accepted, block_by_enumeration(a, b, draft_len), 1e-9);
      EXPECT_GE(accepted, expected_tokens(sum_of_minima(a, b), draft_len) - 1 - 1e-9);
    }
  }
}

// ---- simulation

TEST(TheorySimulation, ToyPairsHaveTheirAcceptance) {
  for (double alpha : {0.05, 0.6, 0.7, 0.8, 0.9, 0.99}) {
    const ToyPair pair = toy_pair(alpha);
    EXPECT_NEAR(sum_of_minima(pair.target_prob, pair.draft_prob), alpha, 1e-12);
    double target_sum = 0;
    double draft_sum = 0;
    for (double prob : pair.target_prob) target_sum += prob;
    for (double prob : pair.draft_prob) draft_sum += prob;
    EXPECT_NEAR(target_sum, 1, 1e-12);
    EXPECT_NEAR(draft_sum, 1, 1e-12);
    // Block verification must have something to win, and coupling something to lose.
    EXPECT_GT(block_accepted(pair.target_prob, pair.draft_prob, 4),
              expected_tokens(alpha, 4) - 1 + 1e-4);
    EXPECT_LT(coupled_agreement(pair.target_prob, pair.draft_prob), alpha - 1e-4);
  }
  for (double alpha : {0.0, 1.0, -0.5, std::nan("")}) EXPECT_THROW(toy_pair(alpha), Error);
  EXPECT_THROW(simulate_rounds(toy_pair(0.5), {.draft_len = 0, .num_rounds = 10}), Error);
  EXPECT_THROW(simulate_rounds(toy_pair(0.5), {.draft_len = 1, .num_rounds = 1}), Error);
}

TEST(TheorySimulation, TokensPerRoundAreThoseOfTheFormula) {
  for (double alpha : {0.6, 0.7, 0.8, 0.9}) {
    const ToyPair pair = toy_pair(alpha);
    for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
      for (int draft_len : {1, 2, 3, 5, 10}) {
        const SimulationSpec spec = {
            .mode = mode, .draft_len = draft_len, .num_rounds = 10000, .seed = 5};
        const SimulatedRounds rounds = simulate_rounds(pair, spec);
        const double expected = expected_simulated_tokens(pair, spec);
        EXPECT_GT(rounds.standard_error, 0.001);
        EXPECT_LT(rounds.standard_error, 0.05);
        EXPECT_LE(std::abs(rounds.tokens_per_round - expected), 4 * rounds.standard_error)
            << alpha << " mode " << static_cast<int>(mode) << " draft_len " << draft_len;
        // The test can tell: the next acceptance's formula is far away.
        EXPECT_GT(std::abs(rounds.tokens_per_round - expected_tokens(alpha + 0.1, draft_len)),
                  4 * rounds.standard_error);
      }
    }
  }
}

TEST(TheorySimulation, CoupledAgreementWithinAFifthOfAPoint) {
  for (double alpha : {0.6, 0.9}) {
    const ToyPair pair = toy_pair(alpha);
    const SimulatedRounds rounds = simulate_rounds(
        pair, {.mode = VerifyMode::kCoupled, .draft_len = 1, .num_rounds = 600000, .seed = 11});
    const double expected = coupled_agreement(pair.target_prob, pair.draft_prob);
    EXPECT_LE(std::abs(rounds.tokens_per_round - 1 - expected), 0.002) << expected;
  }
}

TEST(TheorySimulation, SameSeedSameCounts) {
  const SimulationSpec spec = {.draft_len = 4, .num_rounds = 3000, .seed = 9};
  const ToyPair pair = toy_pair(0.7);
  EXPECT_EQ(simulate_rounds(pair, spec).tokens_per_round,
            simulate_rounds(pair, spec).tokens_per_round);
  SimulationSpec other = spec;
  other.seed = 10;
  EXPECT_NE(simulate_rounds(pair, spec).tokens_per_round,
            simulate_rounds(pair, other).tokens_per_round);
}

}  // namespace
}  // namespace outrider
