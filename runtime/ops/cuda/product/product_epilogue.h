// What becomes of a product's sums, decided once per launch: shared by all product kernels, which
// hand over outputs two by two, those that lie 8 packed rows apart (RowOrder in gpu/tiles.h).
#pragma once

#include "runtime/ops/cuda/exponential.h"
#include "runtime/ops/cuda/fold_leaves.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/pages.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/ops.h"
#include "runtime/ops/gpu/tiles.h"

namespace outrider::gpu {

enum class Ending : uint8_t { kStore, kQkv, kSwiglu };

struct ProductJob {
  ProductArgs product;
  Ending ending = Ending::kStore;
  StoreArgs store{};
  QkvArgs qkv{};
  SwigluArgs swiglu{};
};

OUTRIDER_DEVICE int32_t rows_of(const ProductArgs& product) {
  const StepCounts& counts = *product.step.counts;
  return product.selected ? counts.num_logit_rows : counts.num_rows;
}

// What a leaf of the fold is made of a slice's sum of packed row `out` (past the end: anything).
struct LeafTerms {
  float scale = 1.0f;
  float bias = 0.0f;
  bool has_scale = false;
  bool has_bias = false;
};
// first: of scales and bias, where the matrix is one of several.
OUTRIDER_DEVICE LeafTerms leaf_terms(const ProductArgs& product, int32_t out, int32_t first = 0) {
  LeafTerms terms;
  const bool is_there = out < product.weights.n_out;
  terms.has_scale = is_there && product.weights.scales != nullptr;
  terms.has_bias = is_there && product.bias != nullptr;
  if (terms.has_scale) terms.scale = product.weights.scales[first + out];
  if (terms.has_bias) terms.bias = product.bias[first + out];
  return terms;
}
OUTRIDER_DEVICE float make_leaf(const LeafTerms& terms, int32_t slice, float sum) {
  if (terms.has_scale) sum = exact_mul(sum, terms.scale);
  if (terms.has_bias && slice == 0) sum = exact_add(sum, terms.bias);
  return sum;
}

// to: of the row.
OUTRIDER_DEVICE void store_pair(float* to, int32_t n_out, int32_t out, float low, float high) {
  if (out < n_out) to[out] = low;
  if (out + 8 < n_out) to[out + 8] = high;
}

OUTRIDER_DEVICE void store_qkv_pair(
    const ProductJob& job, int32_t out, int32_t row, float low, float high) {
  const QkvArgs& to = job.qkv;
  const int32_t head_dim = to.kv.head_dim;
  const int32_t half = head_dim / 2;
  const int32_t head = out / head_dim;
  const int32_t i = out % head_dim / 16 * 8 + out % 8;
  const int32_t n_turned = to.n_heads + to.kv.n_kv_heads;
  if (head >= n_turned + to.kv.n_kv_heads) return;
  if (head < n_turned) {
    const float* const angles =
        to.rotary.angles + static_cast<size_t>(job.product.step.positions[row]) *
                               static_cast<size_t>(to.rotary.rotary_dim);
    const float cosine = angles[i];
    const float sine = angles[half + i];
    const float first = low;
    low = exact_add(exact_mul(first, cosine), -exact_mul(high, sine));
    high = exact_add(exact_mul(high, cosine), exact_mul(first, sine));
  }
  const HeadPlace place = place_of_head(to, job.product.step, row, head);
  store_float(place.data, to.kv.type, place.first + static_cast<size_t>(i), low);
  store_float(place.data, to.kv.type, place.first + static_cast<size_t>(half + i), high);
}

// What was made of gate and up, which are packed rows `out` and out + 8.
OUTRIDER_DEVICE void store_gated(const Activations& to, int32_t out, int32_t row, float gated) {
  const int32_t i = out / 16 * 8 + out % 8;
  if (i >= to.n) return;
  store_activation(to, row, i, gated);
  const bool pads = to.type != Type::kF32 && to.n % kTileInner != 0 && i >= to.n - 8;
  if (pads) store_activation(to, row, i + 8, 0.0f);
}

// Packed rows `out` (out % 16 < 8) and out + 8 of the weights, for one row of the step.
OUTRIDER_DEVICE void finish_pair(
    const ProductJob& job, int32_t out, int32_t row, float low, float high) {
  if (job.ending == Ending::kStore) {
    const int32_t n_out = job.product.weights.n_out;
    float* const to = job.store.out + static_cast<size_t>(row) * static_cast<size_t>(n_out);
    store_pair(to, n_out, out, low, high);
  } else if (job.ending == Ending::kQkv) {
    store_qkv_pair(job, out, row, low, high);
  } else {
    store_gated(job.swiglu.out, out, row, exact_mul(silu(low), high));
  }
}

// The rows of a whole product, one after the other; product_experts.h has others.
struct WholeRows {
  const ProductJob& job;
  int32_t num_rows;

  OUTRIDER_DEVICE int32_t in_row(int32_t i) const { return i; }
  OUTRIDER_DEVICE int32_t first_weight_row() const { return 0; }
  OUTRIDER_DEVICE LeafTerms terms(int32_t out) const { return leaf_terms(job.product, out); }
  // low, high: leaves of the first num_slices.
  OUTRIDER_DEVICE void finish(int32_t out,
                              int32_t i,
                              float (&low)[kMaxSlices],
                              float (&high)[kMaxSlices],
                              int32_t num_slices) const {
    finish_folded(out, i, fold_leaves(low, num_slices), fold_leaves(high, num_slices));
  }
  OUTRIDER_DEVICE void finish_folded(int32_t out, int32_t i, float low, float high) const {
    finish_pair(job, out, i, low, high);
  }
  OUTRIDER_DEVICE bool keeps_slices() const { return false; }
  OUTRIDER_DEVICE void store_slice(int32_t, int32_t, int32_t, float, float) const {}
};

}  // namespace outrider::gpu
