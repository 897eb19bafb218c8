// Sums over a head by a warp: the order depends on the head's length alone.
#pragma once

#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {

// The sum over the lanes, in all lanes.
OUTRIDER_DEVICE float sum_over_lanes(float value) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value = exact_add(value, shuffle_xor(value, mask));
  return value;
}

OUTRIDER_DEVICE float sum_of(const float* x, uint32_t n) {
  float sum = 0.0f;
  for (uint32_t i = lane_id(); i < n; i += 32) sum = exact_add(sum, x[i]);
  return sum_over_lanes(sum);
}

// Of x[i] - mean.
OUTRIDER_DEVICE float sum_of_squares(const float* x, uint32_t n, float mean = 0.0f) {
  float squares = 0.0f;
  for (uint32_t i = lane_id(); i < n; i += 32) {
    const float distance = exact_add(x[i], -mean);
    squares = fused_multiply_add(distance, distance, squares);
  }
  return sum_over_lanes(squares);
}

}  // namespace outrider::gpu
