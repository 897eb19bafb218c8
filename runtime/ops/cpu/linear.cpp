// Matrix products: calls the panel kernels for what product_pieces.h cuts. Each thread reads one
// contiguous stretch of the weights, front to back, once per block of rows.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/int8/int8_choice.h"
#include "runtime/ops/cpu/int8/quantized_linear.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/product_pieces.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

using cpu::kInnerChunk;
using cpu::kPanel;

// Below this many multiplications one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 19;
// The same for rounding, in elements.
constexpr int64_t kInlineRounding = 1 << 16;

// Where the kernels find the activations. As given: row-major floats. Rounded: the chunks of all
// slices one after the other, each [rows, kInnerChunk], so that the rows of a tile lie side by
// side.
struct Activated {
  const std::byte* data = nullptr;
  int64_t element_bytes = sizeof(float);
  int64_t row_stride = 0;
  bool rounded = false;
};

struct Product {
  Activated in;
  int64_t rows;
  const PackedMatrix* w;
  std::span<const int64_t> slice_ends;
  void (*kernel)(const cpu::LinearPanel&);
};

auto kernel_for(const cpu::KernelTable& table, DType dtype) {
  if (dtype == DType::kBF16) return table.linear_bf16;
  return dtype == DType::kF16 ? table.linear_f16 : table.linear_f32;
}

int64_t chunks_of(int64_t count) { return (count + kInnerChunk - 1) / kInnerChunk; }

// Elements of a panel's inner dimension lie one after the other, so a slice of it is a smaller
// panel. (Of bf16 only from an even element on.)
void sum_slices(const Product& product, const cpu::PanelRows& part) {
  const PackedMatrix& w = *product.w;
  const Activated& in = product.in;
  const size_t column_bytes = static_cast<size_t>(kPanel) * dtype_bytes(w.dtype());
  const std::byte* weights =
      w.data() + static_cast<size_t>(part.panel * ((w.n_in() + 1) / 2 * 2)) * column_bytes;
  const std::byte* rows = in.data + part.first_row * in.row_stride * in.element_bytes;
  cpu::LinearPanel call;
  call.in_stride = in.row_stride;
  call.chunk_stride = in.rounded ? product.rows * kInnerChunk : kInnerChunk;
  call.rows = part.rows;
  call.totals = part.totals;
  call.out = part.out;
  call.out_stride = part.out_stride;
  int64_t begin = 0;
  int64_t chunk = 0;
  for (const int64_t end : product.slice_ends) {
    const int64_t element = in.rounded ? chunk * call.chunk_stride : begin;
    call.weights = weights + static_cast<size_t>(begin) * column_bytes;
    call.n_in = in.rounded ? (end - begin + 1) / 2 * 2 : end - begin;
    call.in = rows + element * in.element_bytes;
    product.kernel(call);
    call.totals += part.rows * kPanel;
    chunk += chunks_of(end - begin);
    begin = end;
  }
}

// Rounds the activations into the context's scratch, each row once.
Activated round_activations(Context& ctx,
                            const float* in,
                            int64_t rows,
                            std::span<const int64_t> slice_ends) {
  const cpu::RoundedProducts& kernels = cpu::rounded_products_of(ctx);
  const int64_t n_in = slice_ends.back();
  int64_t num_chunks = 0;
  int64_t begin = 0;
  for (const int64_t end : slice_ends) {
    num_chunks += chunks_of(end - begin);
    begin = end;
  }
  const int64_t chunk_bytes = kInnerChunk * kernels.element_bytes;
  std::byte* data = ctx.scratch(static_cast<size_t>(num_chunks * rows * chunk_bytes));
  const auto round_rows = [&](int64_t first, int64_t last) {
    std::byte* chunk = data;
    int64_t from = 0;
    for (const int64_t end : slice_ends) {
      for (; from < end; chunk += rows * chunk_bytes) {
        const int64_t count = std::min(kInnerChunk, end - from);
        for (int64_t r = first; r < last; ++r) {
          kernels.round_row(chunk + r * chunk_bytes, in + r * n_in + from, count);
        }
        from += count;
      }
    }
  };
  ctx.threads().for_range(rows, rows * n_in < kInlineRounding, round_rows);
  return {data, kernels.element_bytes, kInnerChunk, true};
}

void check_slices(std::span<const int64_t> ends, int64_t n_in) {
  OUTRIDER_CHECK(std::ssize(ends) <= kMaxSlices && ends.back() == n_in);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    OUTRIDER_CHECK(end >= begin && (end % 2 == 0 || end == n_in));
    begin = end;
  }
}

void multiply(
    Context& ctx, float* out, const float* in, const cpu::ProductShape& of, const LinearSum& sum) {
  const PackedMatrix& w = *of.w;
  const int64_t whole = w.n_in();
  const std::span<const int64_t> slice_ends =
      sum.slice_ends.empty() ? std::span<const int64_t>(&whole, 1) : sum.slice_ends;
  check_slices(slice_ends, w.n_in());
  if (w.is_quantized()) {
    const cpu::QuantizedProduct product{out, in, of, sum.bias, slice_ends, sum.out_stride};
    return cpu::quantized_linear(ctx, product, cpu::quant_kernels_of(ctx.isa()));
  }
  const bool rounded = w.dtype() == DType::kBF16 && ctx.activations() == Activations::kBF16;
  Product product{.in = {reinterpret_cast<const std::byte*>(in), sizeof(float), w.n_in(), false},
                  .rows = of.rows,
                  .w = &w,
                  .slice_ends = slice_ends,
                  .kernel = kernel_for(cpu::kernels_of(ctx.isa()), w.dtype())};
  if (rounded) {
    product.in = round_activations(ctx, in, of.rows, slice_ends);
    product.kernel = cpu::rounded_products_of(ctx).panel;
  }
  const cpu::ProductEnd end = {.out = out,
                               .out_stride = sum.out_stride == 0 ? of.n_out : sum.out_stride,
                               .bias = sum.bias,
                               .num_slices = std::ssize(slice_ends)};
  cpu::multiply_panels(ctx, of, end, kInlineProducts, [&](const cpu::PanelRows& part) {
    sum_slices(product, part);
  });
}

}  // namespace

void linear(Context& ctx,
            float* out,
            const float* in,
            int64_t rows,
            const PackedMatrix& w,
            const LinearSum& sum) {
  if (rows <= 0 || w.n_out() == 0) return;
  multiply(ctx, out, in, {.w = &w, .n_out = w.n_out(), .rows = rows}, sum);
}

void expert_linear(Context& ctx,
                   float* out,
                   const float* in,
                   const ExpertMatrix& matrix,
                   std::span<const ExpertRows> groups) {
  if (groups.empty() || matrix.n_out == 0) return;
  multiply(ctx, out, in, {matrix.w, matrix.n_out, groups.back().end, groups}, {matrix.bias});
}

void add_expert_linear(Context& ctx,
                       const ExpertSums& to,
                       const float* in,
                       const ExpertMatrix& matrix,
                       std::span<const ExpertRows> groups) {
  if (groups.empty() || matrix.n_out == 0) return;
  multiply(ctx,
           nullptr,
           in,
           {matrix.w, matrix.n_out, groups.back().end, groups, &to},
           {matrix.bias, to.slice_ends});
}

}  // namespace outrider::ops
