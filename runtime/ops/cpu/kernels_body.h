// All kernels of an instruction set, written once over 16-lane vectors. Included by each
// kernels_<isa>.cpp inside its own namespace, after it has defined Lanes and the primitives; never
// included elsewhere.
#pragma once

#include "runtime/ops/cpu/attention_body.h"
#include "runtime/ops/cpu/linear_body.h"

constexpr KernelTable kernels_with(const RoundedProducts* rounded_by_dot) {
  return {
      .linear_f32 = linear_panel<F32Weights>,
      .linear_bf16 = linear_panel<Bf16Weights>,
      .linear_f16 = linear_panel<F16Weights>,
      .rounded = kRoundedByFma,
      .rounded_by_dot = rounded_by_dot,
      .sum_of_squares = sum_of_squares,
      .scale_by_weight = scale_by_weight,
      .add_sum_of_squares = add_sum_of_squares,
      .rotate = rotate,
      .silu_mul = silu_mul,
      .exponential = exponential_of_array,
      .attention_tile = {attention_tile<float>, attention_tile<uint16_t>, attention_tile<int8_t>},
      .attention_softmax = attention_softmax,
      .bf16_of_int8 = bf16_of_int8,
      .attention_merge = attention_merge,
      .attention_finish = attention_finish,
      .pack_dwords = pack_dwords,
      .pack_words = pack_words,
      .read_stream = read_stream};
}
