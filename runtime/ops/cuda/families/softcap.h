// The soft cap of scores and logits, as the CPU backend computes it.
#pragma once

#include "runtime/ops/cuda/exponential.h"

namespace outrider::gpu {

// c tanh(x / c) = c - 2 c / (1 + exp(2 x / c)).
OUTRIDER_DEVICE float softcap(float x, float cap) {
  const float grown = exact_add(1.0f, exponential_as_on_cpu(exact_mul(divide(2.0f, cap), x)));
  return exact_add(cap, -divide(exact_mul(2.0f, cap), grown));
}

}  // namespace outrider::gpu
