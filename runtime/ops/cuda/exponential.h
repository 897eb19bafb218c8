// exp as the CPU backend computes it (runtime/ops/cpu/attention_body.h), operation by operation, so
// that an activation has the same bits on both: x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor
// polynomial of degree 7. Relative error below 2e-7; 0 below -104, inf above 88.73, NaN stays NaN.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/tensor.h"

namespace outrider::gpu {

OUTRIDER_DEVICE float exponential_as_on_cpu(float x) {
  constexpr float kMagic = 12582912.0f;  // adding it rounds to an integer kept in the low bits
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float shifted = fused_multiply_add(x, 1.44269504088896341f, kMagic);
  const float n = exact_add(shifted, -kMagic);
  float r = fused_multiply_add(n, -0.693145751953125f, x);
  r = fused_multiply_add(n, -1.42860682030941723e-6f, r);
  float y = fused_multiply_add(1.0f / 5040.0f, r, 1.0f / 720.0f);
  y = fused_multiply_add(y, r, 1.0f / 120.0f);
  y = fused_multiply_add(y, r, 1.0f / 24.0f);
  y = fused_multiply_add(y, r, 1.0f / 6.0f);
  y = fused_multiply_add(y, r, 0.5f);
  y = fused_multiply_add(y, r, 1.0f);
  y = fused_multiply_add(y, r, 1.0f);
  // y * 2^n in two factors, each within the exponent's range.
  const auto power = static_cast<int32_t>(bits_of(shifted) - bits_of(kMagic));
  const int32_t half = power >> 1;
  const float first = float_of((static_cast<uint32_t>(half) + 127u) << 23);
  const float second = float_of((static_cast<uint32_t>(power - half) + 127u) << 23);
  return exact_mul(exact_mul(y, first), second);
}

// x / (1 + exp(-x)).
OUTRIDER_DEVICE float silu(float x) {
  return divide(x, exact_add(1.0f, exponential_as_on_cpu(exact_add(0.0f, -x))));
}

// 1 / (1 + exp(-x)).
OUTRIDER_DEVICE float sigmoid(float x) {
  return divide(1.0f, exact_add(1.0f, exponential_as_on_cpu(exact_add(0.0f, -x))));
}

// ops::clamped_swiglu; NaN stays.
OUTRIDER_DEVICE float clamped_swiglu(float gate, float up, const ops::ClampedSwiglu& of) {
  gate = of.limit < gate ? of.limit : gate;
  up = up < -of.limit ? -of.limit : of.limit < up ? of.limit : up;
  const float exponential = exponential_as_on_cpu(exact_mul(-of.alpha, gate));
  return exact_mul(exact_add(up, 1.0f), divide(gate, exact_add(1.0f, exponential)));
}

}  // namespace outrider::gpu
