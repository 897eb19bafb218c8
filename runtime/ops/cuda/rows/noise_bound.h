// How far Gumbel noise may lift a value, without a logarithm: what lets a draw pass over most
// tokens.
#pragma once

#include "runtime/base/numbers/exact_math.h"

namespace outrider::gpu {

// Above every score that noise can lift a value to, by a margin for the rounding of scores near
// `best`: -log(u) >= 1 - u, so with y = ~bits the noise is at most -log((y + 1/2) / 2^32), and that
// at most log(2) times the leading zeros of the fraction, plus one. No logarithm is taken.
OUTRIDER_HD inline float highest_score(float value, uint32_t bits, float best) {
  constexpr float kLog2 = 0.6931472f;
  const float y = exact_add(static_cast<float>(~bits), 0.5f);
  const auto exponent = static_cast<int32_t>(bits_of(y) >> 23) - 127;
  const float lift = exact_mul(static_cast<float>(32 - exponent), kLog2);
  const float size = (value < 0.0f ? -value : value) + (best < 0.0f ? -best : best);
  return exact_add(exact_add(value, lift), exact_mul(exact_add(size, 64.0f), 1e-6f));
}

}  // namespace outrider::gpu
