// Mixtures of experts on a GPU: arguments of their ops, which are fields of OpTable. A step's rows
// go through the experts in pieces. route_rows() chooses for each row of a piece and lays the pairs
// of a row and an expert into tiles; the two products go by these, so that an expert's weights are
// read once for all rows of a tile; sum_experts() adds up. Nobody waits for the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/gpu/ops.h"
#include "runtime/ops/gpu/tiles.h"
#include "runtime/ops/ops.h"

namespace outrider::gpu {

// Slots [index * tile_rows, + num_rows) of RoutedRows::pairs belong to one expert.
struct ExpertTile {
  int32_t expert = 0;
  int32_t num_rows = 0;
};

// Rows [first_row, first_row + max_rows) of a step, as far as there are so many. Row r of the piece
// and its i-th expert, ids of a row ascending, are pair r * per_row + i. Device memory, which
// route_rows() fills.
struct RoutedRows {
  int32_t first_row = 0;
  int32_t max_rows = 0;
  int32_t num_experts = 0;
  int32_t per_row = 0;
  int32_t tile_rows = 0;        // expert_tile_rows()
  int32_t* ids = nullptr;       // [max_rows, per_row]
  float* weights = nullptr;     // [max_rows, per_row]
  int32_t* pairs = nullptr;     // [max_expert_tiles() * tile_rows], experts ascending
  ExpertTile* tiles = nullptr;  // [max_expert_tiles()]
  int32_t* num_tiles = nullptr;
};

// Few where experts have few rows each. Up to 8 rows of a step are one tile of each expert.
constexpr int32_t expert_tile_rows(int32_t max_rows, int32_t num_experts, int32_t per_row) {
  const bool are_many = int64_t{max_rows} * per_row > int64_t{num_experts} * kTileRows;
  return are_many ? 4 * kTileRows : kTileRows;
}
// Every expert that is chosen has a tile that may not be full.
constexpr int32_t max_expert_tiles(int32_t num_pairs, int32_t num_experts, int32_t tile_rows) {
  const int32_t begun = num_pairs < num_experts ? num_pairs : num_experts;
  return begun + (num_pairs - begun) / tile_rows;
}

// logits[r, e] = router[e] . norm(x[first_row + r]) (+ bias), in float32 and in an order that only
// n decides; then the choice, as ops::choose_experts makes it, and tiles. choice.count and per_row
// are those of `to`.
struct RouteArgs {
  RoutedRows to;
  float* logits = nullptr;             // [max_rows, num_logits]
  const float* x = nullptr;            // [rows, n]
  const float* norm_weight = nullptr;  // [n]: an rms norm
  float eps = 0.0f;
  int32_t n = 0;
  const float* router = nullptr;  // [num_logits, n]
  const float* bias = nullptr;    // [num_logits] or null
  int32_t num_logits = 0;         // the experts, and what else wants one
  ops::ExpertChoice choice;
  const float* expert_scale = nullptr;  // [experts] or null: on the weights of the chosen
  StepView step;
};

// Of a product with the matrices of all experts, each of whole tiles of outputs, one after the
// other: weights.n_out is one expert's; so lie its scales and bias.
//
// gate and up in kPairs order, of rows of the step: out.n units into the slot of every pair.
struct ExpertGateUpArgs {
  RoutedRows rows;
  Activations out;                                        // [slots, out.n]
  ops::ActivationKind kind = ops::ActivationKind::kSilu;  // of gate, or with a limit:
  ops::ClampedSwiglu clamp;
};
// Of slots, into out[pair]: [pairs, n_out], or with keeps_slices [pairs, num_slices, n_out], each
// slice by itself. Without rows.tiles the rows are the step's and the matrix is one, as a shared
// expert's: out[row of the piece]. Tiles and weights are read before the launch before has ended,
// so that one must not be route_rows().
struct ExpertDownArgs {
  RoutedRows rows;
  float* out = nullptr;
  bool keeps_slices = false;
};

// part[first_row + r] = the sum over row r's pairs, ascending, of weight times product, then the
// shared expert's; one chain for each slice, slices folded in the tree of
// runtime/base/numbers/fold_tree.h.
struct SumExpertsArgs {
  RoutedRows rows;
  float* part = nullptr;            // [rows, n]
  const float* products = nullptr;  // [pairs, num_slices, n]
  const float* shared = nullptr;    // [max_rows, num_slices, n] or null
  const float* gates = nullptr;  // row r: gates[r * gate_stride], its sigmoid times shared; or null
  int32_t gate_stride = 0;
  int32_t num_slices = 1;
  int32_t n = 0;
  StepView step;
};

}  // namespace outrider::gpu
