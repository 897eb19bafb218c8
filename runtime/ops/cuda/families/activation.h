// The activations of MLPs, operation by operation as the CPU backend has them
// (runtime/ops/cpu/family_ops.cpp).
#pragma once

#include "runtime/ops/cuda/exponential.h"
#include "runtime/ops/tensor.h"

namespace outrider::gpu {

using ops::ActivationKind;

// The error function of |x| by formula 7.1.26 of Abramowitz and Stegun, given exp(-x^2).
OUTRIDER_DEVICE float erf_of_positive(float x, float exponential) {
  const float t = divide(1.0f, exact_add(1.0f, exact_mul(0.3275911f, x)));
  float poly = exact_add(-1.453152027f, exact_mul(t, 1.061405429f));
  poly = exact_add(1.421413741f, exact_mul(t, poly));
  poly = exact_add(-0.284496736f, exact_mul(t, poly));
  poly = exact_add(0.254829592f, exact_mul(t, poly));
  return exact_add(1.0f, -exact_mul(exact_mul(t, poly), exponential));
}

OUTRIDER_DEVICE float gelu(float x) {
  const float exponential = exponential_as_on_cpu(exact_mul(exact_mul(-0.5f, x), x));
  const float size = exact_mul(x < 0.0f ? -x : x, 0.70710678118654752f);
  const float erf = erf_of_positive(size, exponential);
  return exact_mul(exact_mul(0.5f, x), exact_add(1.0f, x < 0.0f ? -erf : erf));
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
OUTRIDER_DEVICE float gelu_tanh(float x) {
  const float cube = exact_mul(exact_mul(exact_mul(0.044715f, x), x), x);
  const float exponent = exact_mul(-1.5957691216057308f, exact_add(x, cube));
  return divide(x, exact_add(1.0f, exponential_as_on_cpu(exponent)));
}

OUTRIDER_DEVICE float activation(float x, ActivationKind kind) {
  if (kind == ActivationKind::kRelu) return x < 0.0f ? 0.0f : x;  // NaN stays
  if (kind == ActivationKind::kGelu) return gelu(x);
  return kind == ActivationKind::kSilu ? silu(x) : gelu_tanh(x);
}

}  // namespace outrider::gpu
