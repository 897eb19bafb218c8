// Matrix products: cuts the panels of a weight matrix over the threads and the rows into blocks,
// and calls the panel kernels. Each thread reads one contiguous stretch of the weights, front to
// back, once per block of rows.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

using cpu::kMaxLinearRows;
using cpu::kPanel;

// Below this many multiplications one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 19;

struct Product {
  float* out;
  const float* in;
  int64_t rows;
  const PackedMatrix* w;
  const float* bias;
  void (*kernel)(const cpu::LinearPanel&);
};

auto kernel_for(const cpu::KernelTable& table, DType dtype) {
  if (dtype == DType::kBF16) return table.linear_bf16;
  return dtype == DType::kF16 ? table.linear_f16 : table.linear_f32;
}

void store_panel(
    const Product& product, const float* totals, int64_t first_row, int64_t rows, int64_t panel) {
  const int64_t first_out = panel * kPanel;
  const int64_t width = std::min(kPanel, product.w->n_out() - first_out);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = product.out + (first_row + r) * product.w->n_out() + first_out;
    const float* total = totals + r * kPanel;
    if (product.bias == nullptr) {
      std::copy_n(total, width, out);
      continue;
    }
    for (int64_t o = 0; o < width; ++o) out[o] = total[o] + product.bias[first_out + o];
  }
}

void run_panels(const Product& product, int64_t begin, int64_t end) {
  const PackedMatrix& w = *product.w;
  const size_t panel_bytes =
      static_cast<size_t>(kPanel * ((w.n_in() + 1) / 2 * 2)) * dtype_bytes(w.dtype());
  alignas(64) float totals[kMaxLinearRows * kPanel];
  for (int64_t row = 0; row < product.rows; row += kMaxLinearRows) {
    cpu::LinearPanel call;
    call.n_in = w.n_in();
    call.in = product.in + row * w.n_in();
    call.in_stride = w.n_in();
    call.rows = std::min(kMaxLinearRows, product.rows - row);
    call.totals = totals;
    for (int64_t panel = begin; panel < end; ++panel) {
      call.weights = w.data() + static_cast<size_t>(panel) * panel_bytes;
      product.kernel(call);
      store_panel(product, totals, row, call.rows, panel);
    }
  }
}

}  // namespace

void linear(Context& ctx,
            float* out,
            const float* in,
            int64_t rows,
            const PackedMatrix& w,
            const float* bias) {
  if (rows <= 0 || w.n_out() == 0) return;
  const Product product{out, in, rows, &w, bias, kernel_for(cpu::kernels_of(ctx.isa()), w.dtype())};
  const int64_t num_panels = (w.n_out() + kPanel - 1) / kPanel;
  const bool small = rows * w.n_in() * num_panels * kPanel < kInlineProducts;
  ctx.threads().for_range(
      num_panels, small, [&](int64_t begin, int64_t end) { run_panels(product, begin, end); });
}

}  // namespace outrider::ops
