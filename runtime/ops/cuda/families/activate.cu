// The activations of MLPs that products do not end in, operation by operation as the CPU backend
// has them (runtime/ops/cpu/family_ops.cpp). A block for a piece of a row.
#include "runtime/ops/cuda/exponential.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

using ops::ActivationKind;

constexpr uint32_t kThreads = 256;
constexpr int32_t kPiece = 1024;  // of a row

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

OUTRIDER_KERNEL(kThreads) void activate_rows(ActivateArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= args.step.counts->num_rows) return;
  const int32_t n = args.out.n;
  const int32_t begin = static_cast<int32_t>(block_id().y) * kPiece;
  const int32_t end = n - begin < kPiece ? n : begin + kPiece;
  const int32_t width = args.is_gated ? 2 * n : n;
  const float* const x = args.x + static_cast<size_t>(row) * static_cast<size_t>(width);
  const float* factors = args.is_gated ? x + n : nullptr;
  if (args.factors != nullptr) {
    factors = args.factors + static_cast<size_t>(row) * static_cast<size_t>(args.factors_stride);
  }
  for (int32_t i = begin + static_cast<int32_t>(thread_id()); i < end;
       i += static_cast<int32_t>(kThreads)) {
    const float value = activation(x[i], args.kind);
    store_activation(args.out, row, i, factors != nullptr ? exact_mul(value, factors[i]) : value);
  }
}

}  // namespace

void activate(Stream& stream, const ActivateArgs& args) {
  const auto pieces = static_cast<uint32_t>((args.out.n + kPiece - 1) / kPiece);
  launch(stream,
         activate_rows,
         {.grid = {static_cast<uint32_t>(args.max_rows), pieces},
          .threads = kThreads,
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
