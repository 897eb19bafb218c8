// Products with quantised weights: cuts the inner dimension into stretches, quantises the
// activations once, then cuts panels over the threads and rows into blocks as linear.cpp does.
#include "runtime/ops/cpu/int8/quantized_linear.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/numbers/fold_tree.h"
#include "runtime/ops/cpu/int8/int8_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/product_pieces.h"
#include "runtime/ops/cpu/threads/thread_pool.h"

namespace outrider::ops::cpu {
namespace {

// Below these many multiplications (numbers to quantise) one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 20;
constexpr int64_t kInlineNumbers = 1 << 15;

// Rows of one panel's sums that are kept at a time, over all slices.
constexpr int64_t kMaxTotalRows = 256;

struct Product {
  float* out;
  const float* in;
  int64_t rows;
  const PackedMatrix* w;
  const float* bias;
  const QuantKernels* kernels;
  const QuantStretch* stretches;
  int64_t num_stretches = 0;
  int64_t num_slices = 0;
  int64_t slice_stretches[kMaxSlices];  // where each slice ends, in stretches
  QuantActivations activations;
  int64_t n_out = 0;  // of w, or of each expert in it
  int64_t out_stride = 0;
  int64_t first_panel = 0;           // of the expert
  const ExpertSums* sums = nullptr;  // in place of out

  int64_t panel_stride() const { return static_cast<int64_t>(w->quant_layout().panel_bytes()); }
};

// How many stretches there can be: each ends with a group, at a multiple of 128, or with a slice.
int64_t most_stretches(const PackedMatrix& w, std::span<const int64_t> slice_ends) {
  return w.quant_groups().count() + w.n_in() / kQuantStretch + 1 + std::ssize(slice_ends);
}

void list_stretches(Product& product, QuantStretch* stretches, std::span<const int64_t> ends) {
  const PackedMatrix& w = *product.w;
  const QuantLayout& layout = w.quant_layout();
  QuantStretch next;
  int64_t group = 0;
  for (const int64_t slice_end : ends) {
    while (next.begin < slice_end) {
      if (next.begin == layout.groups.end(group)) ++group;
      const int64_t into_group = next.begin - layout.groups.begin(group);
      next.supers = static_cast<int64_t>(layout.super_offset(layout.super_of(next.begin)));
      next.header = static_cast<int64_t>(layout.group_offset(group));
      next.weights = next.header +
                     static_cast<int64_t>(layout.header_bytes() + layout.weight_bytes(into_group));
      const int64_t to_mark = kQuantStretch - (w.in_begin() + next.begin) % kQuantStretch;
      const int64_t to_group_end = layout.groups.end(group) - next.begin;
      next.count = std::min({to_group_end, to_mark, slice_end - next.begin});
      next.padded = (next.count + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
      stretches[product.num_stretches++] = next;
      next.begin += next.count;
      next.before += next.padded;
    }
    product.slice_stretches[product.num_slices++] = product.num_stretches;
  }
  product.stretches = stretches;
}

// Hands out pieces of the context's scratch, each on a cache line of its own.
struct Carver {
  std::byte* base = nullptr;
  size_t used = 0;

  template <typename T>
  T* take(int64_t count) {
    std::byte* at = base == nullptr ? nullptr : base + used;
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
};

struct Scratch {
  QuantStretch* stretches = nullptr;
  QuantActivations activations;
};

Scratch carve(Carver& carver, const QuantizedProduct& asked, int64_t value_bytes) {
  const int64_t num_stretches = most_stretches(*asked.shape.w, asked.slice_ends);
  // All stretches but the last are whole blocks.
  const int64_t padded = (asked.shape.w->n_in() + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
  Scratch scratch;
  scratch.stretches = carver.take<QuantStretch>(num_stretches);
  scratch.activations.rows = asked.shape.rows;
  scratch.activations.values = carver.take<char>(padded * asked.shape.rows * value_bytes);
  scratch.activations.scales = carver.take<float>(num_stretches * asked.shape.rows);
  scratch.activations.minus_sums = carver.take<int32_t>(num_stretches * asked.shape.rows);
  return scratch;
}

void quantize_activations(Context& ctx, const Product& product) {
  const int64_t n_in = product.w->n_in();
  const bool small = product.rows * n_in < kInlineNumbers;
  ctx.threads().for_range(product.rows, small, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t s = 0; s < product.num_stretches; ++s) {
        const QuantStretch& stretch = product.stretches[s];
        const float* x = product.in + row * n_in + stretch.begin;
        product.kernels->quantize(x, stretch, s, product.activations, row);
      }
    }
  });
}

// Some rows of one panel; totals has room for [slices, rows, kPanel].
struct PanelRows {
  int64_t panel;
  int64_t first_row;
  int64_t rows;
  float* totals;
  float* out = nullptr;  // where the kernel itself can write the sums
};

PanelScales panel_scales(QuantScales scales) {
  if (scales == QuantScales::kFloat32) return PanelScales::kFloat32;
  if (scales == QuantScales::kPowers) return PanelScales::kPowers;
  return scales == QuantScales::kFloat16 ? PanelScales::kFloat16 : PanelScales::kSuperBlocks;
}

QuantKind kind_of(const QuantFormat& format) {
  if (format.bits == 8) return format.has_offsets ? QuantKind::k8Offsets : QuantKind::k8;
  if (format.bits == 6) return format.has_offsets ? QuantKind::k6Offsets : QuantKind::k6;
  if (format.has_offsets) return QuantKind::k4Offsets;
  if (format.codes != QuantCodes::kLinear) return QuantKind::k4Codes;
  return format.has_zero_points() ? QuantKind::k4Zeros : QuantKind::k4;
}

void sum_slices(const Product& product, const PanelRows& part) {
  const PackedMatrix& w = *product.w;
  QuantPanel call;
  call.panel = reinterpret_cast<const char*>(w.data()) +
               (product.first_panel + part.panel) * product.panel_stride();
  call.stretches = product.stretches;
  call.activations = product.activations;
  call.first_row = part.first_row;
  call.num_rows = part.rows;
  call.totals = part.totals;
  call.out = part.out;
  call.out_stride = product.out_stride;
  call.scales = panel_scales(w.quant_format().scales);
  call.header_bytes = static_cast<int64_t>(w.quant_layout().header_bytes());
  if (w.quant_format().codes != QuantCodes::kLinear) {
    call.codes = &code_table(w.quant_format().codes);
  }
  const auto kernel = product.kernels->panel[static_cast<int>(kind_of(w.quant_format()))];
  for (int64_t slice = 0; slice < product.num_slices; ++slice) {
    call.end_stretch = product.slice_stretches[slice];
    kernel(call);
    call.first_stretch = call.end_stretch;
    call.totals += part.rows * kPanel;
  }
}

// Bias goes to the first slice, before the slices are folded.
void finish_panel(const Product& product, const PanelRows& part) {
  const int64_t n_out = product.n_out;
  const int64_t first_out = part.panel * kPanel;
  const int64_t width = std::min(kPanel, n_out - first_out);
  for (int64_t r = 0; product.bias != nullptr && r < part.rows; ++r) {
    float* total = part.totals + r * kPanel;
    for (int64_t o = 0; o < width; ++o) total[o] += product.bias[first_out + o];
  }
  if (product.sums != nullptr) {
    return add_to_sums(*product.sums,
                       {part.totals, product.num_slices, part.first_row, part.rows, first_out},
                       n_out);
  }
  fold_in_tree(part.totals,
               static_cast<size_t>(product.num_slices),
               static_cast<size_t>(part.rows * kPanel));
  for (int64_t r = 0; r < part.rows; ++r) {
    std::copy_n(part.totals + r * kPanel,
                width,
                product.out + (part.first_row + r) * product.out_stride + first_out);
  }
}

// Where a panel's sums are the product as they come: whole, with nothing to add. Writing them while
// the next sums are made hides the wait for memory.
float* direct_out(const Product& product, const PanelRows& part) {
  const int64_t n_out = product.n_out;
  const int64_t first_out = part.panel * kPanel;
  const bool whole =
      product.num_slices == 1 && product.num_stretches > 0 && first_out + kPanel <= n_out;
  if (!whole || product.bias != nullptr || product.sums != nullptr) return nullptr;
  return product.out + part.first_row * product.out_stride + first_out;
}

void run_piece(const Product& product, const Piece& piece) {
  alignas(64) float totals[kMaxTotalRows * kPanel];
  const int64_t most_rows = std::min(kMaxLinearRows, kMaxTotalRows / product.num_slices);
  const int64_t rows = piece.row_end - piece.row_begin;
  const int64_t num_blocks = (rows + most_rows - 1) / most_rows;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t first = rows * block / num_blocks;
    PanelRows part{0, piece.row_begin + first, rows * (block + 1) / num_blocks - first, totals};
    for (part.panel = piece.begin; part.panel < piece.end; ++part.panel) {
      part.out = direct_out(product, part);
      sum_slices(product, part);
      if (part.out == nullptr) finish_panel(product, part);
    }
  }
}

}  // namespace

void quantized_linear(Context& ctx, const QuantizedProduct& asked, const QuantKernels& kernels) {
  const ProductShape& shape = asked.shape;
  const PackedMatrix& w = *shape.w;
  if (w.n_in() > 0) check_quant_cuts("product", w.in_begin(), asked.slice_ends);
  Product product{.out = asked.out,
                  .in = asked.in,
                  .rows = shape.rows,
                  .w = &w,
                  .bias = asked.bias,
                  .kernels = &kernels,
                  .n_out = shape.n_out,
                  .out_stride = asked.out_stride == 0 ? shape.n_out : asked.out_stride,
                  .sums = shape.sums};
  Carver measure;
  carve(measure, asked, kernels.value_bytes);
  Carver carver{ctx.scratch(measure.used)};
  const Scratch scratch = carve(carver, asked, kernels.value_bytes);
  product.activations = scratch.activations;
  list_stretches(product, scratch.stretches, asked.slice_ends);
  quantize_activations(ctx, product);
  const bool small = shape.rows * w.n_in() * panels_of(shape.n_out) * kPanel < kInlineProducts;
  for_pieces(ctx, shape, small, [&](const Piece& piece) {
    Product own = product;
    own.first_panel = piece.expert * panels_of(shape.n_out);
    if (own.bias != nullptr) own.bias += piece.expert * shape.n_out;
    run_piece(own, piece);
  });
}

}  // namespace outrider::ops::cpu
