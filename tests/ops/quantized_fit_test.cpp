// The search for scales of 4 bits: against the plain scale of the largest number, and at extremes.
#include "runtime/ops/half.h"
#include "runtime/ops/quantized.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

// Squared error of x against scale * (integer - 8).
double squared_error(const float* x, int64_t count, float scale, const uint8_t* integers) {
  double error = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double off = double{scale} * (integers[i] - 8) - x[i];
    error += off * off;
  }
  return error;
}

TEST(QuantizedFit, FittedScalesBeatTheLargestNumbers) {
  for (const int64_t count : {32, 128, 37}) {
    double fitted = 0;
    double plain = 0;
    for (uint32_t seed = 0; seed < 100; ++seed) {
      std::mt19937 generator(50 + seed);
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<size_t>(count));
      for (float& value : x) value = normal(generator);
      std::vector<uint8_t> integers(x.size());
      const QuantizedGroup group = fit_group_4(x.data(), count, integers.data());
      EXPECT_EQ(group.scale, f16_to_float(float_to_f16(group.scale)));
      EXPECT_EQ(group.zero, 8);
      EXPECT_LE(*std::max_element(integers.begin(), integers.end()), 15);
      fitted += squared_error(x.data(), count, group.scale, integers.data());
      float largest = 0;
      for (const float value : x) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < x.size(); ++i)
        integers[i] = static_cast<uint8_t>(std::lrint(x[i] / largest * 7) + 8);
      plain += squared_error(x.data(), count, largest / 7, integers.data());
    }
    EXPECT_LE(fitted, 0.75 * plain) << count;
  }
}

TEST(QuantizedFit, FittedScalesOfExtremes) {
  std::vector<uint8_t> integers(32);
  const auto scale_of = [&](float first, float others) {
    std::vector<float> x(32, others);
    x[7] = first;
    return fit_group_4(x.data(), 32, integers.data()).scale;
  };
  EXPECT_EQ(scale_of(0.0f, 0.0f), 0.0f);
  EXPECT_EQ(integers, std::vector<uint8_t>(32, 8));
  EXPECT_EQ(scale_of(1e-30f, 0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(scale_of(kPoison, 1.0f)));
  EXPECT_TRUE(std::isnan(scale_of(std::numeric_limits<float>::infinity(), 1.0f)));
  EXPECT_FALSE(std::isfinite(scale_of(3e38f, 1.0f)));
  EXPECT_EQ(scale_of(-8.0f, 3.0f), 1.0f);  // exact: one end is 8 steps away
  EXPECT_EQ(scale_of(8.0f, -3.0f), -1.0f);
  EXPECT_EQ(integers[7], 0);
  EXPECT_EQ(integers[0], 11);
}

}  // namespace
}  // namespace outrider::ops
