// exp and log against long double, the fixed-point weights of order-free sums, and the keys whose
// maximum is a choice.
#include "runtime/base/numbers/exact_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace outrider {
namespace {

double relative_error(double got, long double want) {
  return static_cast<double>(std::fabs((static_cast<long double>(got) - want) / want));
}

TEST(ExactMath, ExpAgreesWithLongDouble) {
  std::mt19937_64 generator(1);
  std::uniform_real_distribution<double> wide(-700.0, 700.0);
  std::uniform_real_distribution<double> usual(-40.0, 0.0);
  double worst = 0.0;
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? wide(generator) : usual(generator);
    const double error = relative_error(exact_exp(x), std::exp(static_cast<long double>(x)));
    ASSERT_TRUE(error <= 1e-15) << x;
    worst = std::max(worst, error);
  }
  EXPECT_GT(worst, 0.0);  // the inputs were not trivial
  EXPECT_EQ(exact_exp(0.0), 1.0);
  EXPECT_LE(exact_exp(-1e9), 1e-300);
  EXPECT_LE(exact_exp(-std::numeric_limits<double>::infinity()), 1e-300);
}

TEST(ExactMath, LogAgreesWithLongDouble) {
  std::mt19937_64 generator(2);
  std::uniform_real_distribution<double> exponent(-708.0, 708.0);
  std::uniform_real_distribution<double> near_one(-1e-3, 1e-3);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? std::exp(exponent(generator)) : 1.0 + near_one(generator);
    if (x == 1.0) continue;
    const double error = relative_error(exact_log(x), std::log(static_cast<long double>(x)));
    ASSERT_TRUE(error <= 5e-16) << x;
  }
  EXPECT_EQ(exact_log(1.0), 0.0);
  EXPECT_EQ(exact_log(0.0), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(exact_log(-1.0), -std::numeric_limits<double>::infinity());
  EXPECT_NEAR(exact_log(5e-324), -744.4400719213812, 1e-9);  // the least subnormal
}

TEST(ExactMath, FixedMomentRoundsTheWeightedDistance) {
  EXPECT_EQ(fixed_moment(0.0), 0u);
  uint64_t largest = 0;
  for (double x = -59.0; x <= 0.0; x += 0.0137) {
    const long double exact = static_cast<long double>(x);
    const long double want = std::exp(exact) * -exact * kWeightOne;
    const auto error = static_cast<long double>(fixed_moment(x)) - want;
    ASSERT_TRUE(std::fabs(error) <= 0.5L + 2e-15L * want) << x;
    largest = std::max(largest, fixed_moment(x));
  }
  EXPECT_LT(largest, uint64_t{1} << kWeightBits);  // sums fit where those of weights do
  EXPECT_GT(largest, uint64_t{1} << (kWeightBits - 2));
  EXPECT_EQ(fixed_moment(-61.0), 0u);
  EXPECT_EQ(fixed_moment(-std::numeric_limits<double>::infinity()), 0u);
  EXPECT_EQ(fixed_moment(std::numeric_limits<double>::quiet_NaN()), 0u);
}

TEST(ExactMath, FixedWeightRoundsTheExponential) {
  EXPECT_EQ(fixed_weight(0.0), uint64_t{1} << kWeightBits);
  for (double x = -32.0; x <= 0.0; x += 0.0137) {
    const long double want = std::exp(static_cast<long double>(x)) * kWeightOne;
    const auto error = static_cast<long double>(fixed_weight(x)) - want;
    ASSERT_TRUE(std::fabs(error) <= 0.5L + 1e-15L * want) << x;
  }
  EXPECT_EQ(fixed_weight(-32.0), 0u);
  EXPECT_EQ(fixed_weight(-std::numeric_limits<double>::infinity()), 0u);
  EXPECT_EQ(fixed_weight(std::numeric_limits<double>::quiet_NaN()), 0u);
}

TEST(ExactMath, TheLargestVocabularyFitsTheSum) {
  const long double worst = static_cast<long double>(fixed_weight(0.0)) * kMaxVocabSize;
  EXPECT_LE(worst, 9223372036854775808.0L);
}

TEST(ExactMath, KeysOrderLikeFloatsAndTheLowestTokenWins) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {
      -infinity, -3e38f, -1.5f, -1e-40f, 0.0f, 1e-40f, 1.0f, 1.5f, 3e38f, infinity};
  for (size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(pack_key(ascending[i], 0), pack_key(ascending[i + 1], kMaxVocabSize));
  }
  EXPECT_GT(pack_key(1.0f, 3), pack_key(1.0f, 4));
  EXPECT_GT(pack_key(-0.0f, 3), pack_key(0.0f, 4));
  EXPECT_GT(pack_key(-infinity, kMaxVocabSize), 0u);
  for (float x : ascending) {
    EXPECT_EQ(key_score(pack_key(x, 77)), x);
    EXPECT_EQ(key_token(pack_key(x, 77)), 77);
  }
}

}  // namespace
}  // namespace outrider
