// The 8-bit float: all codes, rounding between them; and widened inside the product's kernel.
#include "runtime/ops/gpu/float8.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/gpu/product_case.h"

namespace outrider::gpu {
namespace {

// By the format's definition.
double value_of_code(int code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

bool is_nan_code(int code) { return (code & 0x7f) == 0x7f; }

TEST(Float8, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if (is_nan_code(code)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(is_nan_code(float_to_e4m3(value)));
      continue;
    }
    EXPECT_EQ(value, value_of_code(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(float_to_e4m3(value), code);
  }
}

TEST(Float8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto below = static_cast<float>(value_of_code(code));
    const auto above = static_cast<float>(value_of_code(code + 1));
    const float middle = (below + above) / 2;  // exact
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 0x80}) {
      const float factor = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(float_to_e4m3(factor * middle), sign | even) << code;
      EXPECT_EQ(float_to_e4m3(factor * std::nextafter(middle, 0.0f)), sign | code) << code;
      EXPECT_EQ(float_to_e4m3(factor * std::nextafter(middle, 1e9f)), sign | (code + 1)) << code;
    }
  }
  for (const float large : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, HUGE_VALF}) {
    EXPECT_EQ(float_to_e4m3(large), 0x7e);
    EXPECT_EQ(float_to_e4m3(-large), 0xfe);
  }
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Float8, TheLargestWeightBecomesTheLargestCode) {
  EXPECT_EQ(float_to_e4m3(3.7f / e4m3_scale(3.7f)), 0x7e);
  EXPECT_EQ(e4m3_scale(0.0f), 1.0f);
  for (const float broken : {NAN, INFINITY}) {
    const std::vector<float> weights = {1.0f, broken, 2.0f};
    EXPECT_TRUE(std::isnan(e4m3_scale(std::span<const float>(weights))));
  }
}

// One 1 in each row of activations picks single weights: each code's value comes out exactly.
using Widened = ProductTest;

TEST_F(Widened, InTheKernelToBF16) {
  Table codes = {16, 16, {}};
  for (int code = 0; code < 256; ++code) {
    codes.values.push_back(is_nan_code(code) ? 0.0f : static_cast<float>(value_of_code(code)));
  }
  Table picks = {16, 16, std::vector<float>(256)};
  for (size_t i = 0; i < 16; ++i) picks.values[i * 17] = 1.0f;
  const TestMatrix weights(
      *device, codes, Type::kE4M3, {}, std::vector<float>(16, 1.0f));  // scales of 1
  const TestInputs in(*device, picks, Type::kBF16);
  const std::vector<float> found = store(weights, in.activations, 16, 16);
  for (size_t out = 0; out < 16; ++out) {
    for (size_t k = 0; k < 16; ++k) {
      EXPECT_EQ(found[k * 16 + out], codes.values[out * 16 + k]) << out * 16 + k;
    }
  }
}

}  // namespace
}  // namespace outrider::gpu
