// How the numbers of a head turn with their position, two by two.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

class Rotation {
 public:
  OUTRIDER_DEVICE Rotation(const RotaryView& rotary, bool interleaved, size_t position)
      : half_(static_cast<uint32_t>(rotary.rotary_dim) / 2),
        interleaved_(interleaved),
        cosines_(rotary.angles + position * (2 * static_cast<size_t>(half_))) {}

  // Of number i < rotary_dim: the other one of its pair.
  OUTRIDER_DEVICE uint32_t other(uint32_t i) const {
    const uint32_t apart = interleaved_ ? 1 : half_;
    return is_first(i) ? i + apart : i - apart;
  }
  OUTRIDER_DEVICE float turned(uint32_t i, float value, float of_other) const {
    const uint32_t pair = interleaved_ ? i / 2 : is_first(i) ? i : i - half_;
    const float aside = exact_mul(of_other, cosines_[half_ + pair]);
    return exact_add(exact_mul(value, cosines_[pair]), is_first(i) ? -aside : aside);
  }

 private:
  OUTRIDER_DEVICE bool is_first(uint32_t i) const { return interleaved_ ? i % 2 == 0 : i < half_; }

  uint32_t half_;
  bool interleaved_;
  const float* cosines_;  // then the sines
};

}  // namespace outrider::gpu
