// Losslessness with bonus draft tokens for the bonus position and blocks of any size, counted over
// several rounds: as in verify_law_test, for the two rules that judge bonus draft tokens. Built
// once for each.
#include <gtest/gtest.h>

#include "tests/scheduler/law_check.h"

namespace outrider {
namespace {

class BonusDraftLawTest : public ::testing::TestWithParam<LawCase> {};

TEST_P(BonusDraftLawTest, FitsTheExactLawOnAnyNumberOfShards) {
  const LawCase& law_case = GetParam();
  const LawResult result = expect_exact_law(law_case);
  if (law_case.bonus_drafts != BonusDrafts::kNone) {
    // Enough were judged, and neither all nor none was accepted.
    EXPECT_GT(result.num_bonus_drafts, num_samples_of(result) / 20);
    EXPECT_GT(result.num_accepted_bonus_drafts, result.num_bonus_drafts / 10);
    EXPECT_LT(result.num_accepted_bonus_drafts, result.num_bonus_drafts * 97 / 100);
  }
  if (law_case.block_size != BlockSize::kWhole) {
    EXPECT_GT(result.num_whole_blocks, result.num_rounds / 10);
    EXPECT_LT(result.num_whole_blocks, result.num_rounds * 9 / 10);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BonusDraftLawTest,
    ::testing::ValuesIn(bonus_draft_cases(verify_mode_from_name(OUTRIDER_LAW_MODE).value())),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace outrider
