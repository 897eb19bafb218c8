// Which outcomes the draft prepares: the likeliest ones, never more than there are rows for, in an
// order that does not hang on luck; and the shape that Saguaro derives for chances that fall off as
// a power of the rank.
#include "scheduler/pacing/fan_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "scheduler/pacing/acceptance.h"

namespace outrider {
namespace {

struct History {
  RankChances after_some;
  RankChances after_all;
};

OutcomeOdds odds_of(const History& history, int32_t num_in_flight, double acceptance) {
  return {num_in_flight, acceptance, &history.after_some, &history.after_all, {}};
}

int32_t fan_of(const std::vector<Outcome>& outcomes, int32_t num_accepted) {
  return static_cast<int32_t>(
      std::count_if(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
        return outcome.num_accepted == num_accepted;
      }));
}

TEST(FanOut, TakesTheLikeliestWithinTheBudget) {
  std::mt19937 random(11);
  std::set<size_t> sizes;
  for (int i = 0; i < 300; ++i) {
    std::vector<History> histories(1 + random() % 6);
    std::vector<OutcomeOdds> all_odds;
    for (History& history : histories) {
      for (uint32_t n = random() % 200; n > 0; --n) {
        history.after_some.note(static_cast<int32_t>(random() % 12) - 2);
        history.after_all.note(random() % 3 == 0 ? static_cast<int32_t>(random() % 9) : 0);
      }
      all_odds.push_back(odds_of(history,
                                 static_cast<int32_t>(random() % 9),
                                 std::uniform_real_distribution<>(0.02, 0.98)(random)));
      if (random() % 2 == 0) all_odds.back().num_guesses.assign(random() % 9, 1 + random() % 9);
    }
    const auto max_outcomes = static_cast<int32_t>(random() % 60);
    const auto max_per_sequence = static_cast<int32_t>(1 + random() % 20);
    const std::vector<Outcome> all = fan_out(all_odds, 100000, 100000);
    const std::vector<Outcome> chosen = fan_out(all_odds, max_outcomes, max_per_sequence);
    ASSERT_LE(chosen.size(), static_cast<size_t>(max_outcomes));
    double sum = 0;
    for (size_t j = 0; j < chosen.size(); ++j) {
      if (j > 0) {
        ASSERT_LE(chosen[j].chance, chosen[j - 1].chance);
      }
      sum += chosen[j].sequence == 0 ? chosen[j].chance : 0;
      const OutcomeOdds& odds = all_odds[static_cast<size_t>(chosen[j].sequence)];
      ASSERT_LE(chosen[j].num_accepted, odds.num_in_flight);
      const auto row = static_cast<size_t>(chosen[j].num_accepted);
      if (row < odds.num_guesses.size()) {
        ASSERT_LT(chosen[j].rank, odds.num_guesses[row]);
      }
    }
    ASSERT_LE(sum, 1 + 1e-9) << "chances of one sequence's outcomes";
    for (int32_t sequence = 0; sequence < static_cast<int32_t>(all_odds.size()); ++sequence) {
      const auto of_sequence = [&](const Outcome& outcome) { return outcome.sequence == sequence; };
      ASSERT_LE(std::count_if(chosen.begin(), chosen.end(), of_sequence), max_per_sequence);
    }
    // A smaller budget keeps the beginning of a larger one's choice.
    const std::vector<Outcome> fewer = fan_out(all_odds, max_outcomes / 2, max_per_sequence);
    ASSERT_TRUE(std::equal(fewer.begin(), fewer.end(), chosen.begin()));
    if (max_per_sequence >= 100) {
      ASSERT_TRUE(std::equal(chosen.begin(), chosen.end(), all.begin()));
    }
    sizes.insert(chosen.size());
  }
  EXPECT_GT(sizes.size(), 20u);
}

TEST(FanOut, NothingIsChosenTwiceAndTiesFollowTheOrder) {
  const History history;
  const std::vector<OutcomeOdds> all_odds(3, odds_of(history, 2, 0.5));
  const std::vector<Outcome> outcomes = fan_out(all_odds, 30, 30);
  ASSERT_EQ(outcomes.size(), 30u);
  std::set<std::tuple<int32_t, int32_t, int32_t>> seen;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& here = outcomes[i];
    EXPECT_TRUE(seen.emplace(here.sequence, here.num_accepted, here.rank).second);
    if (i == 0 || outcomes[i - 1].chance != here.chance) continue;
    const Outcome& before = outcomes[i - 1];
    EXPECT_LT(std::tuple(before.sequence, before.num_accepted, before.rank),
              std::tuple(here.sequence, here.num_accepted, here.rank));
  }
  EXPECT_EQ(outcomes, fan_out(all_odds, 30, 30));
}

TEST(FanOut, MoreSequencesShareTheSameRows) {
  const History history;
  std::vector<int32_t> of_first;
  for (const size_t num_sequences : {1u, 2u, 4u, 8u, 16u}) {
    const std::vector<OutcomeOdds> all_odds(num_sequences, odds_of(history, 5, 0.8));
    const std::vector<Outcome> outcomes = fan_out(all_odds, 32, 48);
    EXPECT_EQ(outcomes.size(), 32u);
    of_first.push_back(static_cast<int32_t>(
        std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) {
          return outcome.sequence == 0;
        })));
  }
  EXPECT_TRUE(std::is_sorted(of_first.rbegin(), of_first.rend()));
  EXPECT_GE(of_first.back(), 1);
  EXPECT_LT(of_first.back(), of_first.front() / 4);
}

TEST(FanOut, HasSaguarosShapeWhenChancesFallAsAPowerOfTheRank) {
  // Chances ~ (rank + 1)^-(1 + r): the fan-outs of the best choice are F_k ~ a^(k / (1 + r)).
  constexpr double kPower = 1.0;
  constexpr double kAcceptance = 0.6;
  double sum = 0;
  for (int32_t rank = 0; rank < kNumRanks; ++rank) sum += std::pow(rank + 1, -(1 + kPower));
  std::mt19937 random(5);
  History history;
  std::vector<double> weights;
  for (int32_t rank = 0; rank < kNumRanks; ++rank)
    weights.push_back(std::pow(rank + 1, -(1 + kPower)) / sum);
  std::discrete_distribution<int32_t> draw(weights.begin(), weights.end());
  std::array<double, kNumRanks> average{};
  constexpr int kDraws = 400;
  // The counts forget, so one history is noisy; many choices together are not.
  std::array<double, 8> fans{};
  for (int i = 0; i < kDraws; ++i) {
    for (int n = 0; n < 1500; ++n) history.after_some.note(draw(random));
    history.after_all = history.after_some;
    for (int32_t rank = 0; rank < kNumRanks; ++rank)
      average[static_cast<size_t>(rank)] += history.after_some.at(rank) / kDraws;
    const OutcomeOdds odds = odds_of(history, 8, kAcceptance);
    const std::vector<Outcome> outcomes = fan_out(std::span(&odds, 1), 16, 48);
    for (int32_t k = 0; k < 8; ++k) fans[static_cast<size_t>(k)] += fan_of(outcomes, k);
  }
  for (int32_t rank = 0; rank < kNumRanks; ++rank) {
    EXPECT_NEAR(average[static_cast<size_t>(rank)], weights[static_cast<size_t>(rank)], 0.03);
  }
  for (size_t k = 0; k < 4; ++k) {
    const double expected = std::pow(kAcceptance, static_cast<double>(k) / (1 + kPower));
    EXPECT_NEAR(fans[k] / fans[0], expected, 0.15) << k;
  }
  for (size_t k = 1; k < fans.size(); ++k) EXPECT_LE(fans[k], fans[k - 1]) << k;
}

TEST(FanOut, LearnsTheRanksThatCome) {
  RankChances chances;
  EXPECT_GT(chances.at(0), chances.at(1));
  for (int i = 0; i < 2000; ++i) chances.note(i % 2 == 0 ? 3 : -1);
  EXPECT_NEAR(chances.at(3), 0.5, 0.02);
  EXPECT_LT(chances.at(0), 0.01);
  double sum = 0;
  for (int32_t rank = 0; rank < kNumRanks; ++rank) sum += chances.at(rank);
  EXPECT_LE(sum, 1 + 1e-9);
}

TEST(FanOut, AcceptanceIsNeverQuiteSure) {
  AcceptanceCounts always;
  AcceptanceCounts never;
  AcceptanceCounts half;
  std::mt19937 random(2);
  double sum = 0;
  for (int i = 0; i < 2000; ++i) {
    always.add(5, 5, 40);
    never.add(5, 0, 40);
    int32_t num_accepted = 0;
    while (num_accepted < 5 && random() % 2 == 0) ++num_accepted;
    half.add(5, num_accepted, 40);
    if (i >= 1000) sum += half.estimate(0.6, 6) / 1000;
  }
  EXPECT_LT(always.estimate(0.98, 6), 1);
  EXPECT_GT(always.estimate(0.98, 6), 0.98);
  EXPECT_GT(never.estimate(0.02, 6), 0);
  EXPECT_LT(never.estimate(0.02, 6), 0.02);
  EXPECT_NEAR(sum, 0.5, 0.05);
}

TEST(FanOut, PreparesFewerWhenRowsMakeTheStepsLonger) {
  const History history;
  const OutcomeOdds odds = odds_of(history, 4, 0.7);
  const std::vector<Outcome> outcomes = fan_out(std::span(&odds, 1), 40, 48);
  ASSERT_GE(outcomes.size(), 30u);
  int32_t last = static_cast<int32_t>(outcomes.size());
  // From rows that cost nothing to rows of which each costs as much as the first.
  for (const double row_s : {0.0, 0.00002, 0.0001, 0.001}) {
    std::vector<double> step_s;
    for (size_t n = 0; n <= outcomes.size(); ++n)
      step_s.push_back(0.001 + row_s * static_cast<double>(n));
    const VerifyTime time = {0.008, step_s, 6, 0.7};
    const int32_t chosen = num_worth_preparing(outcomes, time);
    EXPECT_LE(chosen, last) << row_s;
    EXPECT_GE(chosen, 1);
    if (row_s == 0) {
      EXPECT_EQ(chosen, static_cast<int32_t>(outcomes.size()));
    }
    last = chosen;
  }
  EXPECT_LE(last, 3);
  EXPECT_EQ(num_worth_preparing(outcomes, {}), static_cast<int32_t>(outcomes.size()));
  EXPECT_EQ(num_worth_preparing({}, {}), 0);
  const std::vector<double> slow(outcomes.size() + 1, 1.0);
  EXPECT_EQ(num_worth_preparing(outcomes, {0.008, slow, 6, 0.7}), 1) << "no time for any";
}

}  // namespace
}  // namespace outrider
