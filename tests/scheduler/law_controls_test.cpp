// The tests of the law tests: rules broken on purpose fail them by far, counts of another law do,
// and chi-square has the quantiles and the power it claims. Also how often the coupled rule agrees.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "runtime/base/numbers/rng.h"
#include "tests/scheduler/law_check.h"

namespace outrider {
namespace {

constexpr int kNumAgreementSamples = 300000;
// The smallest fault shown here, shared noise, is off by 0.03: three times what is found anyway.
constexpr double kMargin = 5.0;

// How many seeds each broken rule is tried with: docs/testing.md, Long forms.
uint64_t num_seeds() {
  const char* asked = std::getenv("OUTRIDER_LAW_SEEDS");
  return asked == nullptr ? 1 : static_cast<uint64_t>(std::atoi(asked));
}

class NegativeControl : public ::testing::TestWithParam<LawCase> {};

// With as many samples as the law tests take.
TEST_P(NegativeControl, ExceedsTheLimitByFarAndItsTwinFits) {
  LawCase law_case = GetParam();
  law_case.rule = kFirstLook;
  law_case.num_samples = samples_to_find(law_distance(), law_case);
  double least = std::numeric_limits<double>::infinity();
  double limit = 0.0;
  for (uint64_t seed = 0; seed < num_seeds(); ++seed) {
    law_case.noise_seed = 99 + seed;
    const ChiSquare broken = sample_law(law_case).test;
    limit = broken.limit;
    least = std::min(least, broken.statistic);
    EXPECT_GT(broken.statistic, kMargin * limit) << "df " << broken.degrees << ", seed " << seed;
  }
  RecordProperty("chi_square", std::to_string(least));
  std::printf("%s: least chi-square %.0f of %d seeds, limit %.1f, %d samples\n",
              law_case.name.c_str(),
              least,
              static_cast<int>(num_seeds()),
              limit,
              law_case.num_samples);
  // What fails is the fault and not the model it is shown on. A quarter of the samples is enough:
  // the same laws are counted in full by the law tests.
  law_case.fault = LawFault::kNone;
  const ChiSquare right = judge_law(law_case, 2.0 * law_distance()).last;
  EXPECT_TRUE(right.fits()) << right.statistic << " over " << right.limit;
}

// The broken rules also fail the test that the right ones pass, at its second look.
TEST(NegativeControls, FailBothLooks) {
  const ChiSquare last = judge_law(negative_controls().front(), 2.0 * law_distance()).last;
  EXPECT_NEAR(chi_square_tail(last.limit, last.degrees), kSecondLook.upper_tail, 1e-9);
  EXPECT_GT(last.statistic, kMargin * last.limit);
}

TEST(SamplesToFind, AreEnoughAndNotManyMore) {
  for (const LawCase& sampler : sampler_cases(VerifyMode::kStandard)) {
    LawCase law_case = sampler;
    law_case.rule = kFirstLook;
    law_case.num_samples = samples_to_find(0.03, law_case);
    const ChiSquare test = sample_law(law_case).test;
    EXPECT_LE(smallest_found_distance(test, law_case.num_samples), 0.03) << law_case.name;
    EXPECT_GT(smallest_found_distance(test, law_case.num_samples), 0.027) << law_case.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         NegativeControl,
                         ::testing::ValuesIn(negative_controls()),
                         [](const auto& instance) {
                           return instance.param.name + "_" + std::to_string(instance.index);
                         });

TEST(CoupledAgreement, IsItsFormulaWithinFourTenthsOfAPoint) {
  for (const LawCase& sampler : sampler_cases(VerifyMode::kCoupled)) {
    if (sampler.name != "plain" && sampler.name != "top_p" && sampler.name != "warm_many_cells") {
      continue;
    }
    LawCase law_case = sampler;
    law_case.num_samples = kNumAgreementSamples;
    law_case.expect_agreement = true;
    const LawResult result = sample_law(law_case);
    const auto examined = static_cast<double>(result.num_examined);
    const double measured = static_cast<double>(result.num_accepted) / examined;
    const double formula = result.expected_accepted / examined;
    std::printf("%s: agreed %.4f, formula %.4f over %.0f draft tokens\n",
                sampler.name.c_str(),
                measured,
                formula,
                examined);
    EXPECT_GT(formula, 0.2);
    EXPECT_LT(formula, 0.9);
    // Six standard deviations at least: a right rule fails once in 500 million.
    EXPECT_LE(6.0 * std::sqrt(formula * (1.0 - formula) / examined), 0.004);
    EXPECT_TRUE(std::abs(measured - formula) <= 0.004);
  }
}

TEST(CoupledAgreement, WorkedExamples) {
  EXPECT_DOUBLE_EQ(coupled_agreement({0.25, 0.75}, {0.25, 0.75}), 1.0);
  EXPECT_DOUBLE_EQ(coupled_agreement({1.0, 0.0}, {0.0, 1.0}), 0.0);
  // (1/3, 2/3) against (2/3, 1/3): 1/(1 + 2) twice.
  EXPECT_NEAR(coupled_agreement({1.0 / 3, 2.0 / 3}, {2.0 / 3, 1.0 / 3}), 2.0 / 3, 1e-12);
}

TEST(ChiSquareTest, KnownQuantiles) {
  // Published tables of the upper 0.1%, 1% and 5% points.
  EXPECT_NEAR(chi_square_quantile(1, 0.05), 3.841, 0.001);
  EXPECT_NEAR(chi_square_quantile(2, 0.01), 9.210, 0.001);
  EXPECT_NEAR(chi_square_quantile(10, 0.001), 29.588, 0.001);
  EXPECT_NEAR(chi_square_quantile(100, 0.001), 149.449, 0.001);
  EXPECT_NEAR(chi_square_tail(chi_square_quantile(63, 1e-8), 63), 1e-8, 1e-12);
  EXPECT_NEAR(chi_square_tail(2.0, 2), std::exp(-1.0), 1e-12);
  EXPECT_EQ(chi_square_tail(0.0, 3), 1.0);
}

TEST(ChiSquareTest, PoolsRareCellsAndForbidsImpossibleOnes) {
  const ChiSquare pooled = chi_square({500, 496, 2, 2}, {0.5, 0.496, 0.002, 0.002});
  EXPECT_EQ(pooled.degrees, 2);
  EXPECT_NEAR(pooled.statistic, 0.0, 1e-9);
  EXPECT_FALSE(chi_square({500, 499, 1}, {0.5, 0.5, 0.0}).fits());
  EXPECT_TRUE(chi_square({500, 500, 0}, {0.5, 0.5, 0.0}).fits());
}

// A law at the distance that is said to be found with 99% probability, and one at half of it, drawn
// many times.
TEST(ChiSquareTest, PowerIsWhatItSays) {
  const std::vector<double> law = {0.4, 0.3, 0.2, 0.1};
  constexpr int kDraws = 2000;
  constexpr int kRepeats = 1000;
  const ChiSquareRule rule{1e-4, 5.0};
  const double distance =
      smallest_found_distance(chi_square({800, 600, 400, 200}, law, rule), kDraws);
  EXPECT_GT(distance, 0.03);
  EXPECT_LT(distance, 0.1);
  const auto share_found = [&](double shift) {
    // Every cell off by the same share of itself, half of the mass up and half down.
    std::vector<double> other = law;
    for (size_t v = 0; v < law.size(); ++v)
      other[v] *= v == 0 || v == 3 ? 1 + 2 * shift : 1 - 2 * shift;
    int found = 0;
    for (uint64_t repeat = 0; repeat < kRepeats; ++repeat) {
      std::vector<uint64_t> counts(law.size(), 0);
      for (uint32_t i = 0; i < kDraws; ++i) {
        double u = uniform_of({mix_seed(5, repeat), i, Stream::kAccept, 0});
        size_t cell = 0;
        while (cell + 1 < other.size() && u >= other[cell]) u -= other[cell++];
        ++counts[cell];
      }
      found += chi_square(counts, law, rule).fits() ? 0 : 1;
    }
    return found / double{kRepeats};
  };
  EXPECT_NEAR(share_found(distance), 0.99, 0.012);
  EXPECT_LT(share_found(distance / 2), 0.6);
  EXPECT_LE(share_found(0.0), 0.003);
}

}  // namespace
}  // namespace outrider
