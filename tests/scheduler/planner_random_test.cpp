// Thousands of random lives of a planner (scenario.h): texts, ends, blocks and rows must always be
// right, and the checks themselves must be able to fail.
#include <gtest/gtest.h>

#include <set>

#include "tests/scheduler/scenario.h"

namespace outrider::testing {
namespace {

constexpr uint32_t kNumScenarios = 10000;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(PlannerRandom, EveryPromiseHoldsInEveryScenario) {
  Outcome total;
  for (uint32_t seed = 0; seed < kNumScenarios; ++seed) {
    const Outcome outcome = run_scenario(random_scenario(seed));
    ASSERT_TRUE(outcome.faults.empty()) << "scenario " << seed << "\n" << joined(outcome.faults);
    total.num_preemptions += outcome.num_preemptions;
    total.num_chunks += outcome.num_chunks;
    total.num_tokens += outcome.num_tokens;
    total.num_draft_tokens += outcome.num_draft_tokens;
    total.num_accepted += outcome.num_accepted;
    total.num_bonus_drafts += outcome.num_bonus_drafts;
    total.num_accepted_bonus_drafts += outcome.num_accepted_bonus_drafts;
    total.num_lookups += outcome.num_lookups;
    total.num_hits += outcome.num_hits;
    total.num_stops += outcome.num_stops;
    total.num_cancelled += outcome.num_cancelled;
    total.num_failed += outcome.num_failed;
    total.num_reused += outcome.num_reused;
    total.num_emptied += outcome.num_emptied;
  }
  // The scenarios must reach what they are meant to test.
  EXPECT_GT(total.num_preemptions, 1000u);
  EXPECT_GT(total.num_chunks, 10000u);
  EXPECT_GT(total.num_tokens, 50000u);
  EXPECT_GT(total.num_draft_tokens, 20000u);
  EXPECT_GT(total.num_accepted, 10000u);
  EXPECT_LT(total.num_accepted, total.num_draft_tokens);
  EXPECT_GT(total.num_accepted_bonus_drafts, 1000u);
  EXPECT_LT(total.num_accepted_bonus_drafts, total.num_bonus_drafts);
  EXPECT_GT(total.num_hits, 1000u);
  EXPECT_LT(total.num_hits, total.num_lookups);
  EXPECT_GT(total.num_stops, 500u);
  EXPECT_GT(total.num_cancelled, 200u);
  EXPECT_GT(total.num_failed, 200u);
  EXPECT_GT(total.num_reused, 10000u);
  EXPECT_GT(total.num_emptied, 10000u);
}

TEST(PlannerRandom, SameInputsGiveTheSamePlans) {
  std::set<uint64_t> digests;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const Scenario scenario = random_scenario(seed);
    const uint64_t digest = run_scenario(scenario).plans_digest;
    ASSERT_EQ(digest, run_scenario(scenario).plans_digest) << "scenario " << seed;
    digests.insert(digest);
  }
  EXPECT_GT(digests.size(), 290u);
}

// Negative controls: ranks that do something else than the plan says must be noticed.
uint32_t num_scenarios_with_faults(Sabotage sabotage) {
  uint32_t num_noticed = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    Scenario scenario = random_scenario(seed);
    scenario.sabotage = sabotage;
    if (!run_scenario(scenario).faults.empty()) ++num_noticed;
  }
  return num_noticed;
}

TEST(PlannerRandom, LostBlocksAreNoticed) {
  EXPECT_GT(num_scenarios_with_faults(Sabotage::kForgetNewBlocks), 50u);
}

TEST(PlannerRandom, WronglyAcceptedDraftsAreNoticed) {
  EXPECT_GT(num_scenarios_with_faults(Sabotage::kKeepRejectedRow), 20u);
}

// Shows that blocks are reused, and that what they hold is looked at.
TEST(PlannerRandom, LostReusedBlocksAreNoticed) {
  EXPECT_GT(num_scenarios_with_faults(Sabotage::kClearReusedBlocks), 10u);
}

}  // namespace
}  // namespace outrider::testing
