// Elements of device memory by type, in kernels: widening is exact, narrowing rounds to nearest
// even.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/ops.h"
#include "runtime/ops/gpu/tiles.h"
#include "runtime/ops/half.h"

namespace outrider::gpu {

OUTRIDER_DEVICE float load_as_float(const void* data, Type type, size_t index) {
  if (type == Type::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == Type::kBF16 ? ops::bf16_to_float(bits) : ops::f16_to_float(bits);
}

OUTRIDER_DEVICE void store_float(void* data, Type type, size_t index, float value) {
  if (type == Type::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] =
        type == Type::kBF16 ? ops::float_to_bf16(value) : ops::float_to_f16(value);
  }
}

// Element (row, k) of a product's input.
OUTRIDER_DEVICE void store_activation(const Activations& to, int32_t row, int32_t k, float value) {
  const size_t at = to.type == Type::kF32 ? static_cast<size_t>(row) * static_cast<size_t>(to.n) +
                                                static_cast<size_t>(k)
                                          : activation_offset(row, k, to.n);
  store_float(to.data, to.type, at, value);
}

// Elements (row, k) and (row, k + 1), k even: side by side in the fragments too.
OUTRIDER_DEVICE void store_activation_pair(
    const Activations& to, int32_t row, int32_t k, float low, float high) {
  if (to.type == Type::kF32) {
    store_activation(to, row, k, low);
    store_activation(to, row, k + 1, high);
    return;
  }
  static_cast<uint32_t*>(to.data)[activation_offset(row, k, to.n) / 2] =
      to.type == Type::kBF16 ? pack_bf16(low, high) : pack_f16(low, high);
}

}  // namespace outrider::gpu
