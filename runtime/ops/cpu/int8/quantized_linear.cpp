// Products with quantised weights: cuts the inner dimension into stretches, quantises the
// activations once, then calls the panel kernels as linear.cpp does.
#include "runtime/ops/cpu/int8/quantized_linear.h"

#include <algorithm>

#include "runtime/ops/cpu/int8/int8_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/product_pieces.h"
#include "runtime/ops/cpu/threads/thread_pool.h"

namespace outrider::ops::cpu {
namespace {

// Below these many multiplications (numbers to quantise) one thread is faster than a hand-over.
constexpr int64_t kInlineProducts = 1 << 20;
constexpr int64_t kInlineNumbers = 1 << 15;

struct Product {
  const float* in;
  int64_t rows;
  const PackedMatrix* w;
  const QuantKernels* kernels;
  const QuantStretch* stretches;
  int64_t num_stretches = 0;
  int64_t num_slices = 0;
  int64_t slice_stretches[kMaxSlices];  // where each slice ends, in stretches
  QuantActivations activations;
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
               part.panel * static_cast<int64_t>(w.quant_layout().panel_bytes());
  call.stretches = product.stretches;
  call.activations = product.activations;
  call.first_row = part.first_row;
  call.num_rows = part.rows;
  call.totals = part.totals;
  call.out = part.out;
  call.out_stride = part.out_stride;
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

}  // namespace

void quantized_linear(Context& ctx, const QuantizedProduct& asked, const QuantKernels& kernels) {
  const ProductShape& shape = asked.shape;
  const PackedMatrix& w = *shape.w;
  if (w.n_in() > 0) check_quant_cuts("product", w.in_begin(), asked.slice_ends);
  Product product{.in = asked.in, .rows = shape.rows, .w = &w, .kernels = &kernels};
  Carver measure;
  carve(measure, asked, kernels.value_bytes);
  Carver carver{ctx.scratch(measure.used)};
  const Scratch scratch = carve(carver, asked, kernels.value_bytes);
  product.activations = scratch.activations;
  list_stretches(product, scratch.stretches, asked.slice_ends);
  quantize_activations(ctx, product);
  const ProductEnd end = {.out = asked.out,
                          .out_stride = asked.out_stride == 0 ? shape.n_out : asked.out_stride,
                          .bias = asked.bias,
                          .num_slices = product.num_slices};
  multiply_panels(
      ctx, shape, end, kInlineProducts, [&](const PanelRows& part) { sum_slices(product, part); });
}

}  // namespace outrider::ops::cpu
