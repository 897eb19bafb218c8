// What the tests of the ops share: random inputs that are known to vary, comparisons that fail on
// NaN, and the list of instruction sets of this CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/ops/half.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

inline std::vector<Isa> all_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) isas.push_back(isa);
  }
  return isas;
}

// Uniform in -1 .. 1; checks that what it made is not constant.
inline std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;
  }
  if (count >= 16) {
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += value;
      squares += double{value} * value;
    }
    const double n = static_cast<double>(count);
    EXPECT_GT(squares / n - sum / n * sum / n, 0.05);
  }
  return values;
}

// Largest |actual - expected| relative to the largest |expected|; inf when any actual is not
// finite.
inline double error_of(const std::vector<float>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 1e-30;
  double error = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    if (!std::isfinite(actual[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(actual[i] - expected[i]));
  }
  return error / largest;
}

inline bool same_bits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// A weight matrix in a file's type together with the values it stands for.
struct Weights {
  std::vector<uint16_t> halves;
  std::vector<float> floats;  // what the elements are worth after rounding to dtype
  DType dtype = DType::kF32;
  const void* data() const {
    return dtype == DType::kF32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
};

inline Weights random_weights(size_t count, DType dtype, uint32_t seed) {
  Weights weights;
  weights.dtype = dtype;
  weights.floats = random_floats(count, seed);
  if (dtype == DType::kF32) return weights;
  for (float& value : weights.floats) {
    const uint16_t bits = dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
    weights.halves.push_back(bits);
    value = dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  return weights;
}

inline PackedMatrix pack(const Weights& weights, int64_t n_out, int64_t n_in) {
  PackedMatrix matrix(n_out, n_in, weights.dtype);
  matrix.fill_rows(0, weights.data(), n_out, n_in, weights.dtype);
  return matrix;
}

inline const char* dtype_name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : "f16";
}

}  // namespace outrider::ops
