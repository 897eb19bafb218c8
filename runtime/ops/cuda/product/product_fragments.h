// What a lane holds of a packed weight tile, by type, and the matrix instruction that takes it.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

// kWeights: the packed type; kInputs: kBF16 or kF16, what the instruction multiplies. Packed: what
// a lane holds; Half: one pair of inputs of two outputs (gpu/tiles.h).
template <Type kWeights>
struct Fragment {
  static constexpr Type kInputs = kWeights;
  using Packed = Vector4;
  using Half = Vector2;
  static OUTRIDER_DEVICE Vector4 widened(const Packed& packed) { return packed; }
  static OUTRIDER_DEVICE Vector4 widened(const Half& first, const Half& second) {
    return {first.x, first.y, second.x, second.y};
  }
};

// e4m3 to bf16: exponent and fraction move to where the wider type has them, which then stand for
// the value times a power of two, also where the exponent is 0; one multiplication, exact. (The NaN
// codes come out as 480: whoever packs weights refuses NaN.)
template <>
struct Fragment<Type::kE4M3> {
  static constexpr Type kInputs = Type::kBF16;
  using Packed = Vector2;
  using Half = uint32_t;
  static constexpr uint32_t kShift = 4;  // from the upper byte of each half
  static constexpr uint32_t kMagnitudes = 0x7F007F00u >> kShift;
  static constexpr uint32_t kFactors = 0x7B807B80u;  // 2^120

  // Of the upper byte of each half.
  static OUTRIDER_DEVICE uint32_t widened_pair(uint32_t upper_bytes) {
    const uint32_t bits = (upper_bytes & 0x80008000u) | (upper_bytes >> kShift & kMagnitudes);
    return multiply_pair_bf16(bits, kFactors);
  }
  static OUTRIDER_DEVICE Vector4 widened(const Packed& packed) {
    return {widened_pair(packed.x << 8),
            widened_pair(packed.x),
            widened_pair(packed.y << 8),
            widened_pair(packed.y)};
  }
  static OUTRIDER_DEVICE Vector4 widened(Half first, Half second) {
    return widened(Packed{first, second});
  }
};

template <Type kInputs>
OUTRIDER_DEVICE void multiply(float (&sums)[4], const Vector4& weights, const Vector2& inputs) {
  if constexpr (kInputs == Type::kBF16) {
    multiply_bf16(sums, weights, inputs);
  } else {
    multiply_f16(sums, weights, inputs);
  }
}

}  // namespace outrider::gpu
