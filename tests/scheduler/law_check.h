// What every counted case of the law tests must show.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "scheduler/exactness/law_cases.h"

namespace outrider {

inline constexpr int kNumLawSamples = 400000;

// The exact law on 1, 2 and 4 shards, by a test that would have found a rule that is off by a
// hundredth. The counts of 2 and 4 shards equal those of 1 because every single decision does.
inline LawResult expect_exact_law(LawCase law_case) {
  law_case.num_samples = kNumLawSamples;
  law_case.shard_counts = {1, 2, 4};
  const LawResult result = sample_law(law_case);
  EXPECT_EQ(result.num_unlike, 0);
  const ChiSquare& test = result.test;
  ::testing::Test::RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GE(test.degrees, 3);
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " at df " << test.degrees;
  EXPECT_LE(smallest_found_distance(test, kNumLawSamples), 0.01);
  return result;
}

}  // namespace outrider
