// Matrix products: cuts the panels of a weight matrix over the threads and the rows into blocks,
// and calls the panel kernels. Each thread reads one contiguous stretch of the weights, front to
// back, once per block of rows.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/fold_tree.h"
#include "runtime/ops/cpu/int8_choice.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/quantized_linear.h"
#include "runtime/ops/cpu/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

using cpu::kMaxLinearRows;
using cpu::kPanel;

// Below this many multiplications one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 19;

// Rows of one panel's sums that are kept at a time, over all slices.
constexpr int64_t kMaxTotalRows = 256;
static_assert(kMaxTotalRows / kMaxSlices >= 32);  // the promise of ops.h

struct Product {
  float* out;
  const float* in;
  int64_t rows;
  const PackedMatrix* w;
  const float* bias;
  std::span<const int64_t> slice_ends;
  void (*kernel)(const cpu::LinearPanel&);

  int64_t num_slices() const { return static_cast<int64_t>(slice_ends.size()); }
};

auto kernel_for(const cpu::KernelTable& table, DType dtype) {
  if (dtype == DType::kBF16) return table.linear_bf16;
  return dtype == DType::kF16 ? table.linear_f16 : table.linear_f32;
}

// Some rows of one panel; totals has room for [slices, rows, kPanel].
struct PanelRows {
  int64_t panel;
  int64_t first_row;
  int64_t rows;
  float* totals;
};

// Elements of a panel's inner dimension lie one after the other, so a slice of it is a smaller
// panel. (Of bf16 only from an even element on.)
void sum_slices(const Product& product, const PanelRows& part) {
  const PackedMatrix& w = *product.w;
  const size_t column_bytes = static_cast<size_t>(kPanel) * dtype_bytes(w.dtype());
  const std::byte* weights =
      w.data() + static_cast<size_t>(part.panel * ((w.n_in() + 1) / 2 * 2)) * column_bytes;
  cpu::LinearPanel call;
  call.in_stride = w.n_in();
  call.rows = part.rows;
  call.totals = part.totals;
  int64_t begin = 0;
  for (const int64_t end : product.slice_ends) {
    call.weights = weights + static_cast<size_t>(begin) * column_bytes;
    call.n_in = end - begin;
    call.in = product.in + part.first_row * w.n_in() + begin;
    product.kernel(call);
    call.totals += part.rows * kPanel;
    begin = end;
  }
}

void add_bias(const Product& product, const PanelRows& part) {
  const int64_t first_out = part.panel * kPanel;
  const int64_t width = std::min(kPanel, product.w->n_out() - first_out);
  for (int64_t r = 0; r < part.rows; ++r) {
    float* total = part.totals + r * kPanel;
    for (int64_t o = 0; o < width; ++o) total[o] += product.bias[first_out + o];
  }
}

void store_panel(const Product& product, const PanelRows& part) {
  const int64_t n_out = product.w->n_out();
  const int64_t first_out = part.panel * kPanel;
  const int64_t width = std::min(kPanel, n_out - first_out);
  for (int64_t r = 0; r < part.rows; ++r) {
    std::copy_n(
        part.totals + r * kPanel, width, product.out + (part.first_row + r) * n_out + first_out);
  }
}

void run_panels(const Product& product, int64_t begin, int64_t end) {
  alignas(64) float totals[kMaxTotalRows * kPanel];
  const int64_t most_rows = std::min(kMaxLinearRows, kMaxTotalRows / product.num_slices());
  for (int64_t row = 0; row < product.rows; row += most_rows) {
    PanelRows part{0, row, std::min(most_rows, product.rows - row), totals};
    for (part.panel = begin; part.panel < end; ++part.panel) {
      sum_slices(product, part);
      if (product.bias != nullptr) add_bias(product, part);
      fold_in_tree(totals,
                   static_cast<size_t>(product.num_slices()),
                   static_cast<size_t>(part.rows * kPanel));
      store_panel(product, part);
    }
  }
}

void check_slices(std::span<const int64_t> ends, int64_t n_in) {
  OUTRIDER_CHECK(std::ssize(ends) <= kMaxSlices && ends.back() == n_in);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    OUTRIDER_CHECK(end >= begin && (end % 2 == 0 || end == n_in));
    begin = end;
  }
}

}  // namespace

void linear(Context& ctx,
            float* out,
            const float* in,
            int64_t rows,
            const PackedMatrix& w,
            const LinearSum& sum) {
  if (rows <= 0 || w.n_out() == 0) return;
  const int64_t whole = w.n_in();
  const std::span<const int64_t> slice_ends =
      sum.slice_ends.empty() ? std::span<const int64_t>(&whole, 1) : sum.slice_ends;
  check_slices(slice_ends, w.n_in());
  if (w.is_quantized()) {
    const cpu::QuantizedProduct product{out, in, rows, &w, sum.bias, slice_ends};
    return cpu::quantized_linear(ctx, product, cpu::quant_kernels_of(ctx.isa()));
  }
  const Product product{.out = out,
                        .in = in,
                        .rows = rows,
                        .w = &w,
                        .bias = sum.bias,
                        .slice_ends = slice_ends,
                        .kernel = kernel_for(cpu::kernels_of(ctx.isa()), w.dtype())};
  const int64_t num_panels = (w.n_out() + kPanel - 1) / kPanel;
  const bool small = rows * w.n_in() * num_panels * kPanel < kInlineProducts;
  ctx.threads().for_range(
      num_panels, small, [&](int64_t begin, int64_t end) { run_panels(product, begin, end); });
}

}  // namespace outrider::ops
