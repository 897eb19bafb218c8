// The length of drafts by made-up costs: what best_draft_len() chooses, and that DraftLength finds
// its way from nothing.
#include "scheduler/draft_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace outrider {
namespace {

// A step that waits for memory up to 20 rows and computes from there on.
double step_s(int32_t rows) { return 0.040 * std::max(1.0, rows / 20.0); }

DraftCosts costs_of(const std::function<double(int32_t)>& step, double draft_s, double acceptance) {
  DraftCosts costs{.draft_s = draft_s, .acceptance = acceptance};
  for (int32_t rows = 1; rows <= 512; ++rows) {
    for (int i = 0; i < 3; ++i) costs.steps.add(rows, step(rows));
  }
  return costs;
}

double rate_of(int32_t num_sequences, int32_t k, double draft_s, double acceptance) {
  const double tokens = (1 - std::pow(acceptance, k + 1)) / (1 - acceptance);
  return tokens / (step_s(num_sequences * (k + 1)) + k * draft_s);
}

// One round of a server whose true costs are these.
void run_round(DraftLength* length, int32_t num_sequences, int32_t k, double draft_s) {
  length->note_round(num_sequences * (k + 1), step_s(num_sequences * (k + 1)));
  if (k == 0) return;
  length->note_wait(k, k * draft_s);
  // Seven of ten tokens stand, in turns.
  static int turn = 0;
  for (int32_t n = 0; n < num_sequences; ++n) {
    int32_t accepted = 0;
    while (accepted < k && ++turn % 10 < 7) ++accepted;
    length->note_verdict(k, accepted);
  }
}

TEST(BestDraftLen, IsTheOneWithMostTokensPerSecond) {
  for (int32_t num_sequences : {1, 2, 4, 8, 16, 20, 32}) {
    const DraftCosts costs = costs_of(step_s, 0.004, 0.8);
    const int32_t chosen = best_draft_len(costs, num_sequences, 8);
    double best = 0;
    for (int32_t k = 0; k <= 8; ++k) best = std::max(best, rate_of(num_sequences, k, 0.004, 0.8));
    EXPECT_GE(rate_of(num_sequences, chosen, 0.004, 0.8), 0.97 * best) << num_sequences;
  }
}

TEST(BestDraftLen, FallsAsTheBatchGrows) {
  const DraftCosts costs = costs_of(step_s, 0.004, 0.8);
  EXPECT_GE(best_draft_len(costs, 1, 8), 4);
  EXPECT_GE(best_draft_len(costs, 4, 8), 3);
  EXPECT_LE(best_draft_len(costs, 8, 8), 2);
  EXPECT_EQ(best_draft_len(costs, 24, 8), 0);
}

TEST(BestDraftLen, IsNoneForADraftThatLoses) {
  EXPECT_EQ(best_draft_len(costs_of(step_s, 0.004, 0.0), 1, 8), 0);  // never right
  EXPECT_EQ(best_draft_len(costs_of(step_s, 0.050, 0.8), 1, 8), 0);  // as slow as the target
  EXPECT_EQ(best_draft_len(DraftCosts{}, 4, 8), 0);                  // nothing known
}

TEST(RowCosts, LiesBetweenNeighboursWhereNothingWasSeen) {
  RowCosts costs;
  EXPECT_EQ(costs.at(16), 0);
  for (int i = 0; i < 3; ++i) costs.add(16, 0.04);
  EXPECT_DOUBLE_EQ(costs.at(16), 0.04);
  EXPECT_DOUBLE_EQ(costs.at(64), 0.04);  // to be found out
  EXPECT_LT(costs.at(4), 0.04);
  for (int i = 0; i < 3; ++i) costs.add(80, 0.16);
  EXPECT_GT(costs.at(48), 0.08);
  EXPECT_LT(costs.at(48), 0.10);
}

TEST(RowCosts, OneDisturbedStepDoesNotCount) {
  RowCosts costs;
  costs.add(32, 1.0);
  for (int i = 0; i < 8; ++i) costs.add(32, 0.05);
  EXPECT_LT(costs.at(32), 0.06);
  costs.add(32, 0.1);
  EXPECT_LT(costs.at(32), 0.06);
}

TEST(DraftLength, FindsTheBestFromNothing) {
  for (int32_t num_sequences : {2, 8, 16, 32}) {
    DraftLength length(4);
    EXPECT_EQ(length.choose(num_sequences), 4);  // nothing known yet
    double lost_s = 0;
    double passed_s = 0;
    double best = 0;
    for (int32_t k = 0; k <= 4; ++k) best = std::max(best, rate_of(num_sequences, k, 0.004, 0.7));
    for (int round = 0; round < 500; ++round) {
      const int32_t k = length.choose(num_sequences);
      run_round(&length, num_sequences, k, 0.004);
      const double round_s = step_s(num_sequences * (k + 1)) + k * 0.004;
      passed_s += round_s;
      lost_s += round_s * (1 - rate_of(num_sequences, k, 0.004, 0.7) / best);
    }
    EXPECT_LT(lost_s, 0.04 * passed_s) << num_sequences;
  }
}

TEST(DraftLength, OneRequestAndSmallModelsGetTheFullLength) {
  DraftLength length(4);
  for (int i = 0; i < 10; ++i) {
    run_round(&length, 32, length.choose(32), 0.004);
    run_round(&length, 32, 0, 0.004);
  }
  EXPECT_EQ(length.choose(1), 4);
  EXPECT_EQ(length.choose(32), 0);
  DraftLength small(4);
  for (int i = 0; i < 10; ++i) {
    small.note_round(8, 0.0002);
    small.note_round(40, 0.002);
  }
  EXPECT_EQ(small.choose(8), 4);
}

}  // namespace
}  // namespace outrider
