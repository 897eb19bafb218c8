// What every counted case of the law tests must show, and how it is judged.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

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

// The fewest samples, as multiples of 1,000, with which the case's test finds every law at this
// total variation distance from the exact one with 99% probability (smallest_found_distance).
inline int samples_to_find(double distance, const LawCase& law_case) {
  LawCase one = law_case;
  one.num_samples = 1;
  const std::vector<double> law = sample_law(one).law;
  std::vector<uint64_t> counts(law.size(), 0);
  // Cells that are pooled with fewer samples count with more: from 1,000 up until nothing changes.
  uint64_t num_samples = 1000;
  while (true) {
    counts[0] = num_samples;
    const ChiSquare test = chi_square(counts, law, law_case.rule);
    const double found = smallest_found_distance(test, static_cast<double>(num_samples));
    if (found <= distance) return static_cast<int>(num_samples);
    const double ratio = found / distance;
    const double needed = static_cast<double>(num_samples) * ratio * ratio;
    num_samples = std::max(num_samples + 1000, static_cast<uint64_t>(needed / 1000) * 1000);
  }
}

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
