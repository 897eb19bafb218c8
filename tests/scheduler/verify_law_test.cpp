// Losslessness, counted: speculative generation through propose() and verify() on sharded logits
// against the exact joint law of the first tokens, for every sampler and draft. Built once for each
// rule, so that the three run side by side.
#include <gtest/gtest.h>

#include "tests/scheduler/law_check.h"

namespace outrider {
namespace {

class LawTest : public ::testing::TestWithParam<LawCase> {};

TEST_P(LawTest, FitsTheExactLawOnAnyNumberOfShards) {
  const LawCase& law_case = GetParam();
  const LawResult result = expect_exact_law(law_case);
  if (law_case.draft != DraftKind::kNone) {
    // Neither all nor none were accepted: both branches of the rule were taken.
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
