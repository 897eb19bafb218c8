// Conversions between float and the 16-bit types of weight files, bit by bit: correct for
// subnormals, infinities and NaN, rounding to nearest even. Used where weights are packed or looked
// up, by the scalar kernels and on GPUs; the AVX kernels use the machine's instructions, which give
// the same values.
#pragma once

#include <cstdint>

#include "runtime/base/numbers/exact_math.h"

namespace outrider::ops {

OUTRIDER_HD inline float bf16_to_float(uint16_t bits) {
  return float_of(static_cast<uint32_t>(bits) << 16);
}

OUTRIDER_HD inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {
    const float value = exact_mul(static_cast<float>(fraction), 0x1p-24f);
    return sign != 0 ? -value : value;
  }
  if (exponent == 31) {
    const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
    return float_of(sign | 0x7F800000u | quiet | (fraction << 13));
  }
  return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

OUTRIDER_HD inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

OUTRIDER_HD inline uint16_t float_to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u)
    return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 rounds to inf
  if (magnitude <
      0x38800000u) {  // below 2^-14: the sum's rounding drops exactly the bits f16 lacks
    const float shifted = exact_add(float_of(magnitude), 0.5f);
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace outrider::ops
