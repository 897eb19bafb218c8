// Rounds with the draft at work and idle, measured in turns: times by hand, no planner.
#include "scheduler/pacing/draft_trials.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace outrider {
namespace {

constexpr auto kIdle = DraftTrials::kIdle;
constexpr auto kWorking = DraftTrials::kWorking;

// Rounds of a job: idle ones take 1 and give a token, working ones take `working_s` and give 1
// to 5.
struct Job {
  int32_t num_sequences = 1;
  double working_s = 1;
  double noise = 0.05;                       // of the times
  std::function<double(int64_t)> disturbed;  // factor of the times, by rounds
  std::mt19937 random{1};
  int64_t num_rounds = 0;
  DraftTrials::Arm expected = kWorking;

  // Returns how many were idle.
  int64_t run(DraftTrials& trials, int64_t count) {
    int64_t num_idle = 0;
    for (int64_t i = 0; i < count; ++i, ++num_rounds) {
      const DraftTrials::Arm arm = trials.arm(num_sequences, expected);
      int32_t num_tokens = num_sequences;
      if (arm == kWorking) {
        for (int32_t s = 0; s < num_sequences; ++s)
          num_tokens += std::uniform_int_distribution<int32_t>(0, 4)(random);
      }
      double seconds = (arm == kWorking ? working_s : 1) *
                       (1 + noise * std::uniform_real_distribution<double>(-1, 1)(random));
      if (disturbed) seconds *= disturbed(num_rounds);
      trials.record_round(num_sequences, num_tokens, seconds, arm, expected);
      num_idle += arm == kIdle ? 1 : 0;
    }
    return num_idle;
  }
};

TEST(DraftTrials, ADraftThatPaysHardlyEverIdles) {
  DraftTrials trials;
  Job job;
  EXPECT_EQ(trials.arm(1), kWorking);
  EXPECT_TRUE(trials.warms_up(1));
  EXPECT_LE(job.run(trials, 100), 12);
  EXPECT_LE(job.run(trials, 10000), 100);
  ASSERT_TRUE(trials.gain(1).has_value());
  EXPECT_NEAR(*trials.gain(1), 3, 0.6);
}

// As 8-bit pairs did at 16 requests, where steps of twice the rows take nearly twice as long.
TEST(DraftTrials, ALossOfASixthIsFoundAtOnceAndHardlyTriedAgain) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    DraftTrials trials;
    Job job{.num_sequences = 16, .working_s = 3 / 0.85, .random = std::mt19937(seed)};
    EXPECT_GE(job.run(trials, 200), 120) << seed;
    EXPECT_GE(job.run(trials, 1000), 970) << seed;
    EXPECT_EQ(trials.arm(40), kIdle) << "as the next smaller size, seed " << seed;
    EXPECT_EQ(trials.arm(4), kWorking) << "a larger one says nothing, seed " << seed;
  }
}

// Of 16 requests one ends, and the next one begins a round later: the draft, idle for a while,
// would first read what it has not heard.
TEST(DraftTrials, AFullBatchThatReplacesARequestStaysInItsClass) {
  DraftTrials trials;
  Job{.num_sequences = 8}.run(trials, 200);
  Job{.num_sequences = 16, .working_s = 3 / 0.85}.run(trials, 200);
  ASSERT_EQ(trials.arm(8), kWorking);
  for (int32_t num_sequences = 12; num_sequences <= 20; ++num_sequences)
    EXPECT_EQ(trials.arm(num_sequences), kIdle) << num_sequences;
}

TEST(DraftTrials, ADisturbedStartDecidesNothingForLong) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    DraftTrials trials;
    Job job{.random = std::mt19937(seed)};
    // The first trial is of quiet rounds, beside working ones that were ten times too long.
    job.disturbed = [](int64_t round) { return round < 10 ? 10.0 : 1.0; };
    job.run(trials, 120);
    EXPECT_LE(job.run(trials, 400), 60) << seed;
  }
}

TEST(DraftTrials, ALostGainIsNoticedBeforeTheNextTrialIsDue) {
  DraftTrials trials;
  Job job;
  job.run(trials, 20000);
  job.working_s = 6;
  job.run(trials, 100);
  EXPECT_EQ(trials.arm(1), kIdle);
}

TEST(DraftTrials, ManySequencesIdleUnlessTheDraftBringsALittle) {
  for (const auto& [num_sequences, idles] : {std::pair{4, false}, std::pair{64, true}}) {
    DraftTrials trials;
    Job job{.num_sequences = num_sequences, .working_s = 3 / 1.03, .noise = 0.02};
    job.run(trials, 300);
    EXPECT_EQ(job.run(trials, 1000) > 500, idles) << num_sequences;
  }
}

// A wave of 64 requests of 64 tokens, with a draft that makes a round 4 times as long: at work
// first, it would be slow until it is found out, which is much of so short a wave.
TEST(DraftTrials, ADraftThatIsExpectedNotToPayIsTriedOnceThereIsTime) {
  for (const auto expected : {kIdle, kWorking}) {
    DraftTrials trials;
    Job job{.num_sequences = 64, .working_s = 4, .expected = expected};
    EXPECT_EQ(job.run(trials, 64) == 64, expected == kIdle);
  }
  DraftTrials trials;
  Job{.num_sequences = 8, .working_s = 2}.run(trials, 200);
  EXPECT_EQ(trials.arm(8, kIdle), kWorking) << "what was measured decides";
  EXPECT_EQ(trials.arm(16, kIdle), kIdle);
  EXPECT_EQ(trials.arm(16, kWorking), kWorking);
  Job paying{.num_sequences = 16, .working_s = 2, .expected = kIdle};  // 1.5 times as fast with it
  EXPECT_EQ(paying.run(trials, 3500), 3500) << "18 rounds of a trial are more than 0.5% of them";
  EXPECT_EQ(trials.arm(32, kWorking), kIdle) << "as the next smaller size";
  paying.run(trials, 150);
  EXPECT_EQ(trials.arm(16), kWorking);
  EXPECT_EQ(trials.arm(32), kWorking);
}

TEST(DraftTrials, AnIdleBeginningEndsWhenMoreIsExpected) {
  DraftTrials trials;
  Job job{.num_sequences = 16, .working_s = 2, .expected = kIdle};
  EXPECT_EQ(job.run(trials, 100), 100);
  job.expected = kWorking;
  EXPECT_LE(job.run(trials, 100), 20) << "those of its trials";
  job.expected = kIdle;
  EXPECT_LE(job.run(trials, 100), 20) << "what was measured decides";
}

TEST(DraftTrials, RoundsWithoutTimeOrTokensDecideNothing) {
  DraftTrials trials;
  for (int i = 0; i < 1000; ++i) trials.record_round(3, 0, 0, trials.arm(3));
  for (int i = 0; i < 1000; ++i) trials.record_round(3, 3, 0, trials.arm(3));
  for (int i = 0; i < 1000; ++i) trials.record_round(3, 0, 1, trials.arm(3));
  Job job{.num_sequences = 3};
  job.run(trials, 200);
  EXPECT_LE(job.run(trials, 1000), 100);
}

// A draft that is away leaves rounds idle that were meant for it.
TEST(DraftTrials, RoundsOfTheOtherKindAreNotTaken) {
  DraftTrials trials;
  for (int i = 0; i < 100; ++i) trials.record_round(1, 1, 1, kIdle);
  EXPECT_EQ(trials.rate(1, kIdle), nullptr);
  EXPECT_EQ(trials.arm(1), kWorking);
  EXPECT_TRUE(trials.warms_up(1));
}

}  // namespace
}  // namespace outrider
