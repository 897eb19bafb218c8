// The 8-bit float e4m3 ("FP8 formats for deep learning", Micikevicius et al. 2022): sign, 4 bits of
// exponent with bias 7, 3 bits of fraction; no infinities, the largest value 448, 0x7f and 0xff
// NaN. Weights in it are w = scale * e4m3, one scale per output. Plain functions, the same for
// host, device and emulation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "runtime/base/numbers/exact_math.h"

namespace outrider::gpu {

inline constexpr float kLargestE4M3 = 448.0f;

// Exact.
OUTRIDER_HD inline float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24;
  const uint32_t magnitude = bits & 0x7Fu;
  if (magnitude == 0x7Fu) return float_of(sign | 0x7FC00000u);
  // Exponent and fraction moved to where a float has them stand for 2^-120 of the value, also where
  // the exponent is 0; the factor is a power of two.
  return exact_mul(float_of(sign | magnitude << 20), 0x1p120f);
}

// To nearest, ties to even; beyond the largest value (infinities too) to that; NaN stays NaN.
OUTRIDER_HD inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= bits_of(kLargestE4M3)) return static_cast<uint8_t>(sign | 0x7Eu);
  if (magnitude <
      0x3C800000u) {  // below 2^-6: the sum's rounding drops exactly the bits e4m3 lacks
    const float shifted = exact_add(float_of(magnitude), 0x1p14f);
    return static_cast<uint8_t>(sign | (bits_of(shifted) - bits_of(0x1p14f)));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | (rounded - (120u << 23)) >> 20);
}

// The scale of an output whose largest weight has this magnitude: that one becomes 448. 1 where all
// are zero.
OUTRIDER_HD inline float e4m3_scale(float largest) {
  return largest > 0.0f ? largest / kLargestE4M3 : 1.0f;
}
// NaN where a weight is no number: then the output is none.
inline float e4m3_scale(std::span<const float> weights) {
  float largest = 0.0f;
  for (const float weight : weights) {
    if (!std::isfinite(weight)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(weight));
  }
  return e4m3_scale(largest);
}

}  // namespace outrider::gpu
