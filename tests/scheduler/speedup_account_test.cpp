// The arithmetic of what speculation brought, against rounds worked out by hand and the papers'
// formulas.
#include "scheduler/pacing/speedup_account.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outrider {
namespace {

RoundRecord synchronous_round(int32_t draft_len, int32_t num_accepted, double cost_ratio) {
  RoundRecord round;
  round.step_s = 0.010;
  round.waited_s = draft_len * cost_ratio * 0.010;
  round.round_s = round.waited_s + round.step_s;
  round.load.num_rows = draft_len + 1;
  round.num_sequences = 1;
  round.num_tokens = num_accepted + 1;
  round.num_drafts = draft_len > 0 ? 1 : 0;
  round.num_drafted = draft_len;
  round.num_accepted = num_accepted;
  round.num_examined = std::min(num_accepted + 1, draft_len);
  return round;
}

TEST(RoundRecord, CountsWhatWasPlannedAndDecided) {
  RoundPlan plan;
  RoundDecision decision;
  const auto add = [&](int32_t first_position, int32_t num_committed_rows, size_t num_drafted) {
    SequencePlan& planned = plan.sequences.emplace_back();
    planned.first_position = first_position;
    planned.num_committed_rows = num_committed_rows;
    planned.draft.resize(num_drafted);
    return &decision.sequences.emplace_back();
  };
  SequenceDecision* decided = add(10, 1, 3);  // rows at 10 to 13
  decided->num_accepted = 1;
  decided->next_token = 7;
  plan.sequences.back().source = BlockSource::kSpeculationCache;
  decided = add(0, 2, 0);  // a prompt's rows at 0 and 1, and it does not sample yet
  EXPECT_EQ(decided->next_token, -1);
  decided = add(5, 1, 2);
  decided->failed = true;
  const RoundRecord record = record_of(plan, decision);
  EXPECT_EQ(record.load.num_rows, 4 + 2 + 3);
  EXPECT_EQ(record.load.kv_positions, 14 + 2 + 8);
  EXPECT_EQ(record.load.row_positions, (11 + 12 + 13 + 14) + (1 + 2) + (6 + 7 + 8));
  EXPECT_TRUE(record.reads_prompt);
  EXPECT_EQ(record.num_sequences, 1);
  EXPECT_EQ(record.num_tokens, 2);
  EXPECT_EQ(record.num_drafts, 1);
  EXPECT_EQ(record.num_ready, 1);
  EXPECT_EQ(record.num_drafted, 3);
  EXPECT_EQ(record.num_examined, 2);
  EXPECT_EQ(record.num_accepted, 1);
}

TEST(SpeedupAccount, NothingNotedMeansZerosAndNoNan) {
  const SpeedupTotals totals = SpeedupAccount().totals();
  for (const double value : {totals.bubble(),
                             totals.draft_idle_s,
                             totals.hit_rate(),
                             totals.plain_tokens_per_s(),
                             totals.measured_speedup(),
                             totals.acceptance(),
                             totals.mean_draft_len(),
                             totals.cost_ratio(),
                             totals.predicted_speedup()}) {
    EXPECT_EQ(value, 0);
  }
}

TEST(SpeedupAccount, OneRoundByHand) {
  SpeedupAccount account;
  RoundRecord round;
  round.round_s = 0.018;
  round.waited_s = 0.004;
  round.step_s = 0.012;
  round.load.num_rows = 10;
  round.num_sequences = 2;
  round.num_tokens = 7;
  round.num_drafts = 2;
  round.num_ready = 1;
  round.num_drafted = 8;
  round.num_examined = 7;
  round.num_accepted = 5;
  account.record_round(round);
  account.record_draft(4, 0.008, 0.010);
  const SpeedupTotals& totals = account.totals();
  // 3.5 plain rounds of 12 ms, the only step that was seen, and 2 ms of overhead.
  EXPECT_NEAR(totals.plain_s, 0.049, 1e-12);
  EXPECT_NEAR(totals.measured_speedup(), 0.049 / 0.018, 1e-12);
  EXPECT_NEAR(totals.plain_tokens_per_s(), 7 / 0.049, 1e-9);
  EXPECT_NEAR(totals.bubble(), 4.0 / 18, 1e-12);
  EXPECT_NEAR(totals.draft_idle_s, 0.010, 1e-12);
  EXPECT_NEAR(totals.acceptance(), 5.0 / 7, 1e-12);
  EXPECT_NEAR(totals.mean_draft_len(), 4, 1e-12);
  EXPECT_NEAR(totals.cost_ratio(), 2.0 / 12, 1e-12);
  EXPECT_EQ(totals.num_wasted_rows, 3);
  EXPECT_EQ(totals.num_rows, 10);
}

// Rounds whose accepted lengths follow the geometric law exactly: what was measured, what was
// predicted and Theorem 3.8 are one number.
TEST(SpeedupAccount, SynchronousDraftingAgreesWithTheFormula) {
  const double alpha = 0.8;
  const double c = 0.1;
  const int32_t draft_len = 3;
  SpeedupAccount account;
  // Out of 625 = 5^4 rounds: P(0) = 1/5, P(1) = 4/25, P(2) = 16/125, P(3) = 64/125.
  const int counts[] = {125, 100, 80, 320};
  for (int32_t k = 0; k <= draft_len; ++k) {
    for (int i = 0; i < counts[k]; ++i) {
      account.record_round(synchronous_round(draft_len, k, c));
      account.record_draft(draft_len, draft_len * c * 0.010, 0);
      account.record_lookups(1, 0);
    }
  }
  const double formula = (1 - std::pow(alpha, draft_len + 1)) / ((1 - alpha) * (draft_len * c + 1));
  const SpeedupTotals& totals = account.totals();
  EXPECT_NEAR(totals.acceptance(), alpha, 1e-12);
  EXPECT_NEAR(totals.measured_speedup(), formula, 1e-9);
  EXPECT_NEAR(totals.predicted_speedup(), formula, 1e-9);
  EXPECT_EQ(totals.hit_rate(), 0);
}

TEST(SpeedupAccount, AtHandDraftsHideTheDraftingUpToItsOwnTime) {
  for (const double c : {0.1, 0.5}) {
    SpeedupAccount account;
    for (int i = 0; i < 10; ++i) {
      RoundRecord round = synchronous_round(4, 2, 0);
      const bool ready = i < 9;
      round.num_ready = ready ? 1 : 0;
      account.record_round(round);
      account.record_lookups(1, ready ? 1 : 0);
      account.record_draft(4, 4 * c * 0.010, 0);
    }
    const SpeedupTotals& totals = account.totals();
    const double alpha = 2.0 / 3;
    const double tokens = (1 - std::pow(alpha, 5)) / (1 - alpha);
    const double time = 0.9 * std::max(1.0, 4 * c) + 0.1 * (1 + 4 * c);
    EXPECT_NEAR(totals.predicted_speedup(), tokens / time, 1e-9);
    EXPECT_NEAR(totals.hit_rate(), 0.9, 1e-12);
  }
}

TEST(SpeedupAccount, WithoutDraftsTheSpeedupIsOne) {
  SpeedupAccount account;
  for (int i = 0; i < 5; ++i) account.record_round(synchronous_round(0, 0, 0));
  EXPECT_NEAR(account.totals().measured_speedup(), 1, 1e-12);
  EXPECT_NEAR(account.totals().predicted_speedup(), 1, 1e-12);
}

TEST(SpeedupAccount, APlainStepTakesWhatTheModelOfStepTimesSays) {
  SpeedupAccount account;
  RoundRecord round = synchronous_round(4, 2, 0);
  account.record_round(round);  // nothing is known yet: as long as this step
  EXPECT_NEAR(account.totals().measured_speedup(), 3, 1e-9);
  round.plain_step_s = 0.005;
  account.record_round(round);
  EXPECT_NEAR(account.totals().plain_s, 3 * 0.010 + 3 * 0.005, 1e-12);
}

TEST(SpeedupAccount, PromptsAreNotCompared) {
  SpeedupAccount account;
  RoundRecord prompt = synchronous_round(0, 0, 0);
  prompt.reads_prompt = true;
  prompt.waited_s = 0.001;
  account.record_round(prompt);
  const SpeedupTotals& totals = account.totals();
  EXPECT_EQ(totals.num_rounds, 0);
  EXPECT_EQ(totals.measured_speedup(), 0);
  EXPECT_GT(totals.bubble(), 0);
  EXPECT_EQ(totals.num_rows, 1);
}

// A stop of 30 s within a step, between steps and while a draft was waited for.
TEST(SpeedupAccount, AStallIsNotCompared) {
  for (double RoundRecord::*where :
       {&RoundRecord::step_s, &RoundRecord::round_s, &RoundRecord::waited_s}) {
    SpeedupAccount account;
    for (int i = 0; i < 200; ++i) {
      RoundRecord round = synchronous_round(4, 2, 0.1);
      if (i == 20) {
        round.*where += 30;
        if (where != &RoundRecord::round_s) round.round_s += 30;
      }
      account.record_round(round);
    }
    const SpeedupTotals& totals = account.totals();
    EXPECT_EQ(totals.num_rounds, 199);
    EXPECT_NEAR(totals.measured_speedup(), 3 / 1.4, 1e-9);
    EXPECT_GT(totals.round_s, 30);
  }
}

// Rounds that stay slow are no stall: soon they count.
TEST(SpeedupAccount, ALoadThatIsFarSlowerCountsBeforeLong) {
  SpeedupAccount account;
  for (int i = 0; i < 100; ++i) account.record_round(synchronous_round(0, 0, 0));
  for (int i = 0; i < 100; ++i) {
    RoundRecord slow = synchronous_round(0, 0, 0);
    slow.round_s = slow.step_s = 0.5;
    account.record_round(slow);
  }
  EXPECT_GT(account.totals().num_rounds, 180);
}

}  // namespace
}  // namespace outrider
