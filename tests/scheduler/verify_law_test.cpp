// Losslessness, counted: speculative generation through propose() and verify() on sharded logits
// against the exact joint law of the first tokens, for every sampler and draft. Built once for each
// rule, so that the three run side by side.
#include <gtest/gtest.h>

#include "scheduler/exactness/law_cases.h"

namespace outrider {
namespace {

constexpr int kNumSamples = 400000;

class LawTest : public ::testing::TestWithParam<LawCase> {};

TEST_P(LawTest, FitsTheExactLawOnAnyNumberOfShards) {
  LawCase law_case = GetParam();
  law_case.num_samples = kNumSamples;
  law_case.shard_counts = {1, 2, 4};
  const LawResult result = sample_law(law_case);
  // The counts of 2 and 4 shards equal those of 1 because every single decision does.
  EXPECT_EQ(result.num_unlike, 0);
  const ChiSquare& test = result.test;
  RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GE(test.degrees, 3);
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " at df " << test.degrees;
  // A rule that is off by as little as this would have been found.
  EXPECT_LE(smallest_found_distance(test, kNumSamples), 0.01);
  if (law_case.draft != DraftKind::kNone) {
    // Neither everything nor nothing stood: both branches of the rule were taken.
    const auto accepted = static_cast<double>(result.num_accepted);
    EXPECT_GT(accepted, 0.1 * static_cast<double>(result.num_rounds));
    EXPECT_LT(accepted, 0.97 * static_cast<double>(result.num_drafted));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    LawTest,
    ::testing::ValuesIn(sampler_cases(verify_mode_from_name(OUTRIDER_LAW_MODE).value())),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace outrider
