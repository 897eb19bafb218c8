// The way from ops::linear to the products of quantised weights. Called by linear.cpp, and by tests
// with each of the kernel tables.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/ops/cpu/int8/int8_kernels.h"
#include "runtime/ops/cpu/product_pieces.h"
#include "runtime/ops/ops.h"

namespace outrider::ops::cpu {

struct QuantizedProduct {
  float* out = nullptr;                   // [rows, n_out]
  const float* in = nullptr;              // [rows, w->n_in()]
  ProductShape shape;                     // at least 1 row
  const float* bias = nullptr;            // [w->n_out()], [experts, n_out] or null
  std::span<const int64_t> slice_ends{};  // at least one; checked by check_quant_cuts
  int64_t out_stride = 0;                 // of out's rows; 0: n_out
};

void quantized_linear(Context& ctx, const QuantizedProduct& product, const QuantKernels& kernels);

}  // namespace outrider::ops::cpu
