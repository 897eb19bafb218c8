// The short form of the simulation: jobs of both forms hold what they promise, the interesting
// things happen in them, the same seed gives the same history, and what is broken on purpose is
// noticed. The long form is fault_simulation (docs/testing.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/simulation/simulation.h"

namespace outrider::test {
namespace {

using Form = SimulationResult (*)(uint64_t seed, Sabotage sabotage);

SimulationResult play(Form form, uint64_t first_seed, uint64_t num_seeds) {
  SimulationResult total;
  for (uint64_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const SimulationResult result = form(seed, Sabotage::kNone);
    EXPECT_TRUE(result.faults.empty()) << fmt::format("{}", fmt::join(result.faults, "\n"));
    total.add(result);
    if (!result.faults.empty()) break;
  }
  return total;
}

TEST(FaultSimulation, EveryInvariantHoldsOnOneThread) {
  const SimulationResult total = play(simulate_rounds, 1, 240);
  EXPECT_GT(total.num_rounds, 40000u);
  EXPECT_GT(total.num_compared, 5000u);
  EXPECT_GT(total.num_accepted, 5000u);
  EXPECT_LT(total.num_accepted, total.num_drafts_judged);
  EXPECT_GT(total.num_hits, 500u);
  EXPECT_GT(total.num_bonus_drafts, 100u);
  EXPECT_GT(total.num_waits, 1000u);
  EXPECT_GT(total.num_link_faults, 5000u);
  EXPECT_GT(total.num_lies, 5000u);
  EXPECT_GT(total.num_lives, 300u);
  EXPECT_GT(total.num_preempted, 200u);
  EXPECT_GT(total.num_reused, 2000u);
  EXPECT_GT(total.num_cancelled, 200u);
  EXPECT_GT(total.num_failed, 50u);
}

TEST(FaultSimulation, EveryInvariantHoldsInJobsOfThreads) {
  const SimulationResult total = play(simulate_job, 1, 20);
  EXPECT_GT(total.num_rounds, 2000u);
  EXPECT_GT(total.num_compared, 200u);
  EXPECT_GT(total.num_accepted, 200u);
  EXPECT_GT(total.num_link_faults, 200u);
  EXPECT_GT(total.num_lives, 20u);
}

// What was found: each seed broke something before it was mended.
// A later draw in setting.cpp makes another job of a seed; then it wants another seed.
// 28: waits in vain made the next ones longer, beyond the deadline.
TEST(FaultSimulation, WhatWasFoundIsMended) {
  play(simulate_rounds, 28, 1);
  play(simulate_job, 28, 1);
}

TEST(FaultSimulation, TheSameSeedGivesTheSameHistory) {
  for (const Form form : {Form(simulate_rounds), Form(simulate_job)}) {
    std::set<uint64_t> digests;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const uint64_t digest = form(seed, Sabotage::kNone).digest;
      EXPECT_EQ(digest, form(seed, Sabotage::kNone).digest) << seed;
      digests.insert(digest);
    }
    EXPECT_EQ(digests.size(), 3u);
  }
}

struct Control {
  Sabotage sabotage;
  const char* notice;  // in one of the sentences
  uint64_t num_seeds;  // that are tried
  uint64_t least_noticed;
};

void expect_noticed(Form form, const Control& control) {
  uint64_t num_noticed = 0;
  for (uint64_t seed = 1; seed <= control.num_seeds; ++seed) {
    const SimulationResult result = form(seed, control.sabotage);
    num_noticed += std::ranges::any_of(result.faults, [&](const std::string& fault) {
      return fault.find(control.notice) != std::string::npos;
    });
  }
  EXPECT_GE(num_noticed, control.least_noticed) << control.notice;
}

TEST(FaultSimulation, WhatIsBrokenOnPurposeIsNoticed) {
  for (const Control& control : {
           Control{Sabotage::kLateBlock, "I9: ", 40, 5},
           Control{Sabotage::kForeignBlock, "was not computed for the row", 20, 5},
           Control{Sabotage::kKeepDirt, "failed: the model produced NaN", 20, 10},
           Control{Sabotage::kFlipDecision, "was decided differently", 10, 10},
           Control{Sabotage::kSlowLook, "ms for the draft", 20, 5},
           Control{Sabotage::kOtherText, "wrote another text", 10, 10},
           Control{Sabotage::kLostEvent, "than the ranks decided", 10, 8},
       }) {
    expect_noticed(simulate_rounds, control);
  }
  expect_noticed(simulate_job, {Sabotage::kFlipDecision, "was decided differently", 4, 4});
  expect_noticed(simulate_job, {Sabotage::kKeepDirt, "failed: the model produced NaN", 4, 1});
  expect_noticed(simulate_job, {Sabotage::kOtherText, "wrote another text", 4, 4});
}

}  // namespace
}  // namespace outrider::test
