// Products of rows with the matrices of the experts they chose (gpu/experts.h). A block has outputs
// of one matrix and goes from tile to tile of rows, each with its expert; what a tile does is
// product_skinny.h's and product_f32.cu's, so the bits are those of the expert's matrix by itself.
#pragma once

#include "runtime/ops/cuda/experts/piece.h"
#include "runtime/ops/cuda/families/activation.h"
#include "runtime/ops/cuda/product/product_epilogue.h"

namespace outrider::gpu {

struct ExpertJob {
  ProductArgs product;
  RoutedRows rows;
  bool is_down = false;
  ExpertGateUpArgs gate_up{};
  ExpertDownArgs down{};
};

OUTRIDER_DEVICE int32_t num_expert_tiles(const ExpertJob& job) {
  if (job.rows.tiles != nullptr) return *job.rows.num_tiles;
  return whole_tiles(rows_of_piece(job.rows, job.product.step), job.rows.tile_rows);
}

// The rows of one tile. Without tiles of experts they are the piece's, one after the other.
struct TileOfRows {
  const ExpertJob& job;
  int32_t first_slot;
  int32_t num_rows;
  int32_t expert = 0;

  OUTRIDER_DEVICE TileOfRows(const ExpertJob& of, int32_t tile)
      : job(of), first_slot(tile * of.rows.tile_rows) {
    if (of.rows.tiles != nullptr) {
      expert = of.rows.tiles[tile].expert;
      num_rows = of.rows.tiles[tile].num_rows;
      return;
    }
    const int32_t left = rows_of_piece(of.rows, of.product.step) - first_slot;
    num_rows = left < of.rows.tile_rows ? left : of.rows.tile_rows;
  }

  OUTRIDER_DEVICE int32_t in_row(int32_t i) const {
    const int32_t slot = first_slot + i;
    if (job.rows.tiles == nullptr) return job.rows.first_row + slot;
    if (job.is_down) return slot;
    return job.rows.first_row + job.rows.pairs[slot] / job.rows.per_row;
  }
  OUTRIDER_DEVICE int32_t first_weight_row() const {
    return expert * whole_tiles(job.product.weights.n_out, kTileOutputs) * kTileOutputs;
  }
  OUTRIDER_DEVICE LeafTerms terms(int32_t out) const {
    return leaf_terms(job.product, out, first_weight_row());
  }
  // low, high: leaves of the first num_slices.
  OUTRIDER_DEVICE void finish(int32_t out,
                              int32_t i,
                              float (&low)[kMaxSlices],
                              float (&high)[kMaxSlices],
                              int32_t num_slices) const {
    if (!keeps_slices()) {
      return finish_folded(out, i, fold_leaves(low, num_slices), fold_leaves(high, num_slices));
    }
    OUTRIDER_UNROLL
    for (int32_t s = 0; s < kMaxSlices; ++s) {
      if (s < num_slices) store_slice(out, i, s, low[s], high[s]);
    }
  }
  OUTRIDER_DEVICE void finish_folded(int32_t out, int32_t i, float low, float high) const {
    if (job.is_down) return store_pair(place_of(i), job.product.weights.n_out, out, low, high);
    const ops::ClampedSwiglu& clamp = job.gate_up.clamp;
    const float gated = clamp.limit > 0.0f ? clamped_swiglu(low, high, clamp)
                                           : exact_mul(activation(low, job.gate_up.kind), high);
    store_gated(job.gate_up.out, out, first_slot + i, gated);
  }
  OUTRIDER_DEVICE bool keeps_slices() const { return job.is_down && job.down.keeps_slices; }
  OUTRIDER_DEVICE void store_slice(
      int32_t out, int32_t i, int32_t slice, float low, float high) const {
    const int32_t n_out = job.product.weights.n_out;
    store_pair(place_of(i) + slice * n_out, n_out, out, low, high);
  }

 private:
  // Where down's sums of a row go.
  OUTRIDER_DEVICE float* place_of(int32_t i) const {
    const Matrix& weights = job.product.weights;
    const int32_t slot = first_slot + i;
    const int32_t row = job.rows.tiles == nullptr ? slot : job.rows.pairs[slot];
    const int32_t num_stored = job.down.keeps_slices ? weights.num_slices : 1;
    return job.down.out +
           static_cast<size_t>(row * num_stored) * static_cast<size_t>(weights.n_out);
  }
};

// Blocks of a launch at most, about: those behind the last tile end at once, yet take time.
inline constexpr int32_t kMostExpertBlocks = 2048;

// Tiles that are begun with; a block goes on to its next one.
inline uint32_t tiles_at_once(const ExpertJob& job, uint32_t blocks_of_tile) {
  const RoutedRows& rows = job.rows;
  const int32_t most =
      rows.tiles == nullptr
          ? whole_tiles(rows.max_rows, rows.tile_rows)
          : max_expert_tiles(rows.max_rows * rows.per_row, rows.num_experts, rows.tile_rows);
  const int32_t wanted = kMostExpertBlocks / static_cast<int32_t>(blocks_of_tile);
  return static_cast<uint32_t>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace outrider::gpu
