// What every counted case of the law tests must show, and how it is judged.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "scheduler/exactness/law_cases.h"
#include "tests/scheduler/two_looks.h"

namespace outrider {

// A rule whose law is off by so much (total variation) in any way is found with 99% probability.
// The number of samples follows from it and the number of cells. OUTRIDER_LAW_DISTANCE asks for
// another one: docs/testing.md, Long forms.
inline double law_distance() {
  const char* asked = std::getenv("OUTRIDER_LAW_DISTANCE");
  return asked == nullptr ? 0.01 : std::atof(asked);
}

// Decisions on 2 and 4 shards are compared with those on 1 for so many generations. Where one
// generation in 2,000 came out otherwise, none of these doing so has probability e^-10; and a law
// that differs in fewer is nearer than a twentieth of the distance.
inline constexpr int kNumComparedGenerations = 20000;

struct LawJudgement {
  LawResult first;
  ChiSquare last;  // the one that counts: of new samples where the first did not fit
};

// By one look or two: two_looks.h.
inline LawJudgement judge_law(LawCase law_case, double distance = law_distance()) {
  law_case.rule = kFirstLook;
  law_case.num_samples = samples_to_find(distance, law_case);
  LawJudgement judgement{sample_law(law_case), {}};
  judgement.last = judgement.first.test;
  if (judgement.last.fits()) return judgement;
  law_case.rule = kSecondLook;
  law_case.num_samples *= kSecondLookFactor;
  law_case.noise_seed += 1'000'000;
  law_case.shard_counts.resize(1);
  judgement.last = sample_law(law_case).test;
  return judgement;
}

inline int64_t num_samples_of(const LawResult& result) {
  int64_t sum = 0;
  for (const uint64_t count : result.counts) sum += static_cast<int64_t>(count);
  return sum;
}

// The exact law on 1, 2 and 4 shards. The counts of 2 and 4 shards equal those of 1 as far as every
// single decision does.
inline LawResult expect_exact_law(LawCase law_case) {
  law_case.shard_counts = {1, 2, 4};
  law_case.num_compared = kNumComparedGenerations;
  const LawJudgement judgement = judge_law(law_case);
  const LawResult& result = judgement.first;
  EXPECT_GE(result.num_compared, kNumComparedGenerations);
  EXPECT_EQ(result.num_unlike, 0);
  const auto num_samples = static_cast<double>(num_samples_of(result));
  ::testing::Test::RecordProperty("samples", std::to_string(num_samples_of(result)));
  ::testing::Test::RecordProperty("chi_square", std::to_string(result.test.statistic));
  EXPECT_GE(result.test.degrees, 3);
  EXPECT_TRUE(judgement.last.fits())
      << "first look: " << result.test.statistic << " over " << result.test.limit << " at df "
      << result.test.degrees << "; second: " << judgement.last.statistic << " over "
      << judgement.last.limit;
  EXPECT_LE(smallest_found_distance(result.test, num_samples), law_distance());
  return result;
}

}  // namespace outrider
