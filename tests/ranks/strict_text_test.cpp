// Promise P3: same text on any number of ranks under numerics strict, 200 and more sequences.
#include "tests/ranks/strict_text.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace outrider::test {
namespace {

TEST(StrictText, SameOnAnyNumberOfRanks) {
  StrictComparison comparison(strict_asks(24, 28));
  for (const StrictRun& run : std::vector<StrictRun>{
           {.num_targets = 2, .max_num_seqs = 3},
           {.num_targets = 4},
           {.num_targets = 8},
           {.num_targets = 1, .draft_len = 4},
           {.num_targets = 2, .draft_len = 8},
           {.num_targets = 4, .draft_len = 1, .max_num_seqs = 5},
           {.num_targets = 8, .draft_len = 3},
           {.num_targets = 2, .draft_len = 4, .tight = true},
           {.num_targets = 4, .draft_len = 2, .method = "ngram", .tight = true},
       }) {
    comparison.expect_same(run);
  }
  EXPECT_GE(comparison.num_compared(), 200u);
  comparison.report();
}

// The control: the comparison can fail. Tokens hardly ever differ under fast, logprobs do.
TEST(StrictText, FastDiffersBetweenNumbersOfRanks) {
  const std::vector<Ask> asks = strict_asks(6, 20);
  const auto one = run_strict({.num_targets = 1, .numerics = "fast"}, asks);
  const auto two = run_strict({.num_targets = 2, .numerics = "fast"}, asks);
  int num_different = 0;
  for (size_t i = 0; i < asks.size(); ++i) num_different += same_outcome(one[i], two[i]) ? 0 : 1;
  EXPECT_GT(num_different, 0);
}

TEST(StrictText, OtherNumbersOfRanksAreRefusedAtStart) {
  RunConfig config = embedded_config(3, 0);
  config.numerics = "strict";
  try {
    run_job(config, {}, [](const FrontEndContext&) { return 0; });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1, 2, 4 or 8 target ranks, not for 3"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace outrider::test
