// Losslessness with proposals for the bonus position and blocks of any size, counted over several
// rounds: as in verify_law_test, for the two rules that judge proposals. Built once for each.
#include <gtest/gtest.h>

#include "scheduler/exactness/law_cases.h"

namespace outrider {
namespace {

constexpr int kNumSamples = 400000;

class ProposalLawTest : public ::testing::TestWithParam<LawCase> {};

TEST_P(ProposalLawTest, FitsTheExactLawOnAnyNumberOfShards) {
  LawCase law_case = GetParam();
  law_case.num_samples = kNumSamples;
  law_case.shard_counts = {1, 2, 4};
  const LawResult result = sample_law(law_case);
  EXPECT_EQ(result.num_unlike, 0);
  const ChiSquare& test = result.test;
  RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GE(test.degrees, 3);
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " at df " << test.degrees;
  EXPECT_LE(smallest_found_distance(test, kNumSamples), 0.01);
  if (law_case.proposals != Proposals::kNone) {
    // Enough were judged, and neither all nor none stood.
    EXPECT_GT(result.num_proposals, kNumSamples / 20);
    EXPECT_GT(result.num_proposals_stood, result.num_proposals / 10);
    EXPECT_LT(result.num_proposals_stood, result.num_proposals * 97 / 100);
  }
  if (law_case.block_size != BlockSize::kWhole) {
    EXPECT_GT(result.num_whole_blocks, result.num_rounds / 10);
    EXPECT_LT(result.num_whole_blocks, result.num_rounds * 9 / 10);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ProposalLawTest,
    ::testing::ValuesIn(proposal_cases(verify_mode_from_name(OUTRIDER_LAW_MODE).value())),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace outrider
