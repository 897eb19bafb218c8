// Formats of quantised weights: what they take in memory, and which are refused.
#include "tests/base/error_sentence.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

constexpr auto kHalves = QuantScales::kFloat16;
constexpr auto kSupers = QuantScales::kSuperBlocks;
constexpr auto kPowers = QuantScales::kPowers;
constexpr auto kE2m1 = QuantCodes::kE2m1;
constexpr auto kNonLinear = QuantCodes::kNonLinear;

TEST(QuantizedFormat, BitsPerWeight) {
  const auto bits = [](const QuantFormat& format) {
    return static_cast<double>(PackedMatrix(2048, 2048, format).num_bytes()) * 8 / (2048 * 2048);
  };
  EXPECT_LE(bits({8, 128}), 8.25);
  EXPECT_LE(bits({8, 0}), 8.02);
  EXPECT_LE(bits({4, 128}), 4.32);
  EXPECT_EQ(bits({4, 32, false, kHalves}), 4.5);          // llama.cpp's Q4_0
  EXPECT_EQ(bits({8, 32, false, kHalves}), 8.5);          // Q8_0
  EXPECT_EQ(bits({4, 32, true, kSupers}), 4.625);         // Q4_K has 6 bits for each byte here: 4.5
  EXPECT_EQ(bits({6, 16, false, kSupers}), 6.5625);       // Q6_K
  EXPECT_EQ(bits({6, 32, true, kSupers}), 6.625);         // Q5_K: 5.5
  EXPECT_EQ(bits({4, 32, false, kPowers, kE2m1}), 4.25);  // MXFP4
  EXPECT_EQ(bits({4, 32, false, kHalves, kNonLinear}), 4.5);  // IQ4_NL
}

TEST(QuantizedFormat, WhatCannotBeIsRefusedInOneSentence) {
  const auto made = [](const QuantFormat& format, int64_t n_out, int64_t n_in, int64_t begin) {
    return outrider::error_of([&] { PackedMatrix(n_out, n_in, format, begin); });
  };
  for (const QuantFormat& format :
       {QuantFormat{4, 32, true, kPowers}, {8, 32, false, kHalves, kE2m1}}) {
    EXPECT_EQ(made(format, 1, 32, 0),
              "quantised weights with powers of two as scales, or with codes, have 4 bits and no "
              "offsets");
  }
  EXPECT_EQ(made({3, 128}, 4, 4, 0), "quantised weights of 3 bits cannot be run; 8, 6 and 4 can");
  for (const int64_t size : {-1, 24, 96, 100, 129}) {
    EXPECT_EQ(made({8, size}, 4, 4, 0),
              "quantisation groups of " + std::to_string(size) +
                  " inputs cannot be run; 16, 32, 64, multiples of 128 and 0 (all inputs) can");
  }
  EXPECT_EQ(made({4, 512, false, kSupers}, 4, 4, 0),
            "quantisation groups of 512 inputs do not divide super-blocks of 256");
  EXPECT_EQ(made({8, 128}, -1, 4, 0), "quantised matrix of -1 x 4 has a negative size");
  EXPECT_NE(made({8, 128}, INT64_MAX, 4, 0).find("too large to address"), std::string::npos);
  EXPECT_NE(made({8, 0}, 1, INT64_MAX, 0).find("too large to address"), std::string::npos);
  EXPECT_NE(made({8, 128}, 1 << 30, 1 << 30, 0).find("no memory for"), std::string::npos);
  EXPECT_EQ(made({8, 128}, 4, 4, 12),
            "quantised matrix: a shard of quantised weights cannot begin at input 12, only at "
            "multiples of 8");
  const std::vector<int64_t> ends = {8, 22, 40};
  EXPECT_EQ(outrider::error_of([&] { check_quant_cuts("down_proj", 16, ends); }),
            "down_proj: the sums of quantised weights cannot be cut at input 38, only at multiples "
            "of 8");
  const PackedMatrix matrix(3, 40, QuantFormat{8, 32});
  const std::vector<float> in(40);
  std::vector<float> out(3);
  Context ctx(1);
  EXPECT_NE(outrider::error_of([&] {
              linear(ctx, out.data(), in.data(), 1, matrix, {nullptr, ends});
            }).find("cannot be cut at input 22"),
            std::string::npos);
  const std::vector<float> scales(2, 1.0f);
  for (const auto& [bits, value] : {std::pair{4, 16}, {4, -1}, {6, 32}, {6, -33}}) {
    const std::vector<int8_t> values(40, static_cast<int8_t>(value));
    PackedMatrix narrow(3, 40, QuantFormat{bits, 32});
    EXPECT_EQ(outrider::error_of([&] {
                narrow.fill_integers(0, 1, {values.data(), 40, scales.data(), 2});
              }),
              "a weight of " + std::to_string(bits) + " bits is out of their range");
  }
}

}  // namespace
}  // namespace outrider::ops
