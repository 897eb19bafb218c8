// The second half of a row's norm, for all kernels that end in one: the same bits in each.
#pragma once

#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {

inline constexpr uint32_t kNormThreads = 512;
inline constexpr uint32_t kNormWarps = kNormThreads / 32;

constexpr size_t norm_shared_bytes(int32_t n) {
  return (static_cast<size_t>(n) + kNormWarps) * sizeof(float);
}

// The sum of every thread's value, in all threads.
OUTRIDER_DEVICE float sum_over_block(float value, float* of_warps) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value = exact_add(value, shuffle_xor(value, mask));
  if (lane_id() == 0) of_warps[warp_id()] = value;
  sync_block();
  float sum = of_warps[0];
  for (uint32_t warp = 1; warp < kNormWarps; ++warp) sum = exact_add(sum, of_warps[warp]);
  return sum;
}

// values: the row, in shared memory; room for kNormWarps more behind it. squares: the thread's sum
// over elements thread_id(), thread_id() + kNormThreads, ..., ascending. weights: args.weight or
// what was copied from there. The threads need no sync_block() before; they do before the next row.
OUTRIDER_DEVICE void store_normed_row(
    const NormArgs& args, int32_t out_row, float* values, float squares, const float* weights) {
  const auto n = static_cast<uint32_t>(args.out.n);
  const float mean = divide(sum_over_block(squares, values + n), static_cast<float>(n));
  const float factor = divide(1.0f, square_root(exact_add(mean, args.eps)));
  const auto normed = [=](uint32_t value, uint32_t weight) {
    return exact_mul(exact_mul(float_of(value), factor), float_of(weight));
  };
  OUTRIDER_ROLLED
  for (uint32_t i = 2 * thread_id(); i < n; i += 2 * kNormThreads) {
    const auto k = static_cast<int32_t>(i);
    if (i + 1 == n) {
      store_activation(args.out, out_row, k, normed(bits_of(values[i]), bits_of(weights[i])));
      break;
    }
    const Vector2 value = *reinterpret_cast<const Vector2*>(values + i);
    const Vector2 weight = *reinterpret_cast<const Vector2*>(weights + i);
    store_activation_pair(
        args.out, out_row, k, normed(value.x, weight.x), normed(value.y, weight.y));
  }
}

}  // namespace outrider::gpu
