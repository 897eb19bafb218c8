// Products of 16-bit activations of up to 32 rows: bound by the weights' way from memory. A warp
// has one slice of the inner dimension for kTiles output tiles and streams their fragments straight
// into registers, kDepth steps ahead; up to 8 warps of a block have a tile's slices, whose sums
// meet in shared memory and are folded in the tree. The first loads start before the launch before
// has ended.
//
// An output's bits: one chain of matrix instructions per slice, ascending from zero, then the tree;
// whatever kTiles, kRowTiles and kDepth are, and the same as in product_wide.h.
#pragma once

#include "runtime/base/error.h"
#include "runtime/ops/cuda/product/product_epilogue.h"
#include "runtime/ops/cuda/product/product_fragments.h"

namespace outrider::gpu {

inline constexpr int32_t kMostSkinnyRows = 32;

// kTiles output tiles per warp, kRowTiles tiles of 8 rows.
template <Type kWeightType, Type kInputType, int kOutTiles, int kRowTiles_>
struct Skinny {
  static constexpr Type kWeights = kWeightType;
  static constexpr Type kInputs = kInputType;
  static constexpr int kTiles = kOutTiles;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr bool kIsNarrow = kWeights == Type::kE4M3;
  static constexpr int kSums = kTiles * kRowTiles;
  static constexpr int kBlocksPerProcessor = kSums <= 2 ? 3 : 2;
  // Steps of 16 inputs whose weights are under way, of all tiles: 4 KB of a warp, 6 where two
  // blocks leave registers for it; so 64 to 96 KB of a processor (of e4m3 48 to 72).
  static constexpr bool kHasRoom = kSums == 3 || kSums == 4;
  static constexpr int kSteps = kHasRoom ? (kIsNarrow ? 16 : 12) : (kIsNarrow ? 12 : 8);
  static constexpr int kDepth = kSteps / kTiles;
  // The same of activations, which come from the caches.
  static constexpr int kInputDepth = kTiles == 4 ? 1 : kSums == 1 ? 4 : 2;
  static_assert(kDepth % kInputDepth == 0);
  // Sums pass through shared memory this many output tiles at a time.
  static constexpr int kTilesPerPass = kTiles * kRowTiles <= 8 ? kTiles : 8 / kRowTiles;
  static_assert(kTiles % kTilesPerPass == 0);
  static constexpr int kPieces = kTilesPerPass * kRowTiles;  // of 16 x 8 sums, one float4 a lane
  static constexpr uint32_t kThreads = 256;
  static constexpr size_t kSharedBytes = kThreads * kPieces * sizeof(Vector4);
  static_assert(kSharedBytes <= 32 << 10, "three blocks fit beside a first-level cache");
};

// A block's threads: `groups` of num_slices warps.
struct SkinnyPlace {
  int32_t slice;       // this warp's
  int32_t first_tile;  // of its group
};
template <typename Shape>
OUTRIDER_DEVICE SkinnyPlace skinny_place(const Matrix& weights) {
  const auto warp = static_cast<int32_t>(warp_id());
  const auto groups = static_cast<int32_t>(num_threads() / 32) / weights.num_slices;
  const int32_t group = static_cast<int32_t>(block_id().x) * groups + warp / weights.num_slices;
  // Groups past the end make the last tiles once more: the same bits to the same places.
  const int32_t last_first = whole_tiles(weights.n_out, kTileOutputs) - Shape::kTiles;
  const int32_t first_tile = group * Shape::kTiles;
  return {warp % weights.num_slices, first_tile < last_first ? first_tile : last_first};
}

// The stream of weights and the sums of one warp.
template <typename Shape>
struct SkinnyWarp {
  using Weights = Fragment<Shape::kWeights, Shape::kInputs>;
  using Packed = typename Weights::Packed;

  const Packed* weights;  // this lane's, first tile, input tile 0
  const Vector2* inputs;
  int32_t stride;  // from one tile to the next
  Packed ahead[Shape::kDepth][Shape::kTiles];
  Vector2 inputs_ahead[Shape::kInputDepth][Shape::kRowTiles];
  float sums[Shape::kTiles][Shape::kRowTiles][4] = {};

  OUTRIDER_DEVICE SkinnyWarp(const ProductArgs& args, int32_t first_tile)
      : weights(static_cast<const Packed*>(args.weights.data) + lane_id()),
        inputs(static_cast<const Vector2*>(args.in.data) + lane_id()),
        stride(whole_tiles(args.weights.n_in, kTileInner) * 32) {
    weights += static_cast<size_t>(first_tile) * static_cast<size_t>(stride);
  }

  OUTRIDER_DEVICE void load_weights(int slot, int32_t step) {
    OUTRIDER_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t)
      ahead[slot][t] = load_once(weights + (t * stride + step * 32));
  }
  OUTRIDER_DEVICE void load_inputs(int slot, int32_t step) {
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      inputs_ahead[slot][r] = load_in_order(inputs + (r * stride + step * 32));
    }
  }
  OUTRIDER_DEVICE void multiply_step(int weight_slot, int input_slot) {
    OUTRIDER_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t) {
      const Vector4 wide = Weights::widened(ahead[weight_slot][t]);
      OUTRIDER_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        multiply<Shape::kInputs>(sums[t][r], wide, inputs_ahead[input_slot][r]);
      }
    }
  }

  OUTRIDER_DEVICE void begin_weights(int32_t begin, int32_t end) {
    OUTRIDER_UNROLL
    for (int d = 0; d < Shape::kDepth; ++d) {
      if (begin + d < end) load_weights(d, begin + d);
    }
  }
  // Steps begin .. end - 1, whose first weights are under way.
  OUTRIDER_DEVICE void run(int32_t begin, int32_t end) {
    OUTRIDER_UNROLL
    for (int d = 0; d < Shape::kInputDepth; ++d) {
      if (begin + d < end) load_inputs(d, begin + d);
    }
    for (int32_t step = begin; step < end; step += Shape::kDepth) {
      OUTRIDER_UNROLL
      for (int d = 0; d < Shape::kDepth; ++d) {
        const int32_t now = step + d;
        if (now < end) multiply_step(d, d % Shape::kInputDepth);
        if (now + Shape::kDepth < end) load_weights(d, now + Shape::kDepth);
        if (now + Shape::kInputDepth < end) {
          load_inputs(d % Shape::kInputDepth, now + Shape::kInputDepth);
        }
      }
    }
  }
};

// The sum over a position's leaves in the tree of runtime/base/numbers/fold_tree.h.
OUTRIDER_DEVICE float fold_leaves(float (&leaves)[kMaxSlices], int32_t num_leaves) {
  OUTRIDER_UNROLL
  for (int step = 1; step < kMaxSlices; step *= 2) {
    OUTRIDER_UNROLL
    for (int left = 0; left < kMaxSlices; left += 2 * step) {
      if (step < num_leaves) leaves[left] = exact_add(leaves[left], leaves[left + step]);
    }
  }
  return leaves[0];
}

// This thread's share of a group's pieces in shared memory: folded and finished.
template <typename Shape>
OUTRIDER_DEVICE void finish_pieces(const ProductJob& job, int32_t pass_tile, int32_t num_rows) {
  const int32_t num_slices = job.product.weights.num_slices;
  const auto warp = static_cast<int32_t>(warp_id());
  const int32_t slice = warp % num_slices;
  const auto lane = static_cast<int32_t>(lane_id());
  const float* const of_group = shared_memory<float>() + (warp - slice) * Shape::kPieces * 32 * 4;
  for (int32_t piece = slice; piece < Shape::kPieces; piece += num_slices) {
    const int32_t out = (pass_tile + piece / Shape::kRowTiles) * kTileOutputs + lane / 4;
    const int32_t first_row = piece % Shape::kRowTiles * kTileRows + lane % 4 * 2;
    const LeafTerms low_terms = leaf_terms(job.product, out);
    const LeafTerms high_terms = leaf_terms(job.product, out + 8);
    OUTRIDER_ROLLED
    for (int32_t i = 0; i < 2; ++i) {
      if (first_row + i >= num_rows) break;
      float low[kMaxSlices] = {};
      float high[kMaxSlices] = {};
      OUTRIDER_UNROLL
      for (int32_t s = 0; s < kMaxSlices; ++s) {
        if (s >= num_slices) continue;
        const float* const sums = of_group + ((s * Shape::kPieces + piece) * 32 + lane) * 4 + i;
        low[s] = make_leaf(low_terms, s, sums[0]);
        high[s] = make_leaf(high_terms, s, sums[2]);
      }
      finish_pair(
          job, out, first_row + i, fold_leaves(low, num_slices), fold_leaves(high, num_slices));
    }
  }
}

template <typename Shape>
OUTRIDER_KERNEL(Shape::kThreads, Shape::kBlocksPerProcessor)
void skinny_product(ProductJob job) {
  const Matrix& weights = job.product.weights;
  const SkinnyPlace place = skinny_place<Shape>(weights);
  const int32_t begin = place.slice == 0 ? 0 : weights.slice_ends[place.slice - 1] / kTileInner;
  const int32_t end = whole_tiles(weights.slice_ends[place.slice], kTileInner);
  SkinnyWarp<Shape> warp(job.product, place.first_tile);
  warp.begin_weights(begin, end);
  wait_for_predecessor();
  let_successor_begin();
  const int32_t num_rows = rows_of(job.product);
  warp.run(begin, end);
  OUTRIDER_UNROLL
  for (int pass = 0; pass < Shape::kTiles; pass += Shape::kTilesPerPass) {
    auto* const mine = shared_memory<Vector4>() + warp_id() * Shape::kPieces * 32 + lane_id();
    if (pass > 0) sync_block();
    OUTRIDER_UNROLL
    for (int piece = 0; piece < Shape::kPieces; ++piece) {
      const float(&sums)[4] = warp.sums[pass + piece / Shape::kRowTiles][piece % Shape::kRowTiles];
      mine[piece * 32] = {bits_of(sums[0]), bits_of(sums[1]), bits_of(sums[2]), bits_of(sums[3])};
    }
    sync_block();
    finish_pieces<Shape>(job, place.first_tile + pass, num_rows);
  }
}

template <typename Shape>
void launch_skinny(Stream& stream, const ProductJob& job) {
  const Matrix& weights = job.product.weights;
  const int32_t groups = kMaxSlices / weights.num_slices;
  const int32_t out_tiles = whole_tiles(weights.n_out, kTileOutputs);
  launch(stream,
         skinny_product<Shape>,
         {.grid = {static_cast<uint32_t>(whole_tiles(out_tiles, groups * Shape::kTiles))},
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes,
          .overlaps = true},
         job);
}

// More output tiles per warp mean fewer readings of the activations, but fewer blocks: two per
// processor of a large device are wanted.
inline constexpr int32_t kWantedBlocks = 264;

template <Type kWeights, Type kInputs>
void run_skinny(Stream& stream, const ProductJob& job) {
  const Matrix& weights = job.product.weights;
  const int32_t row_tiles = whole_tiles(job.product.max_rows, kTileRows);
  const int32_t most_tiles =
      whole_tiles(weights.n_out, kTileOutputs) * weights.num_slices / (kMaxSlices * kWantedBlocks);
  if (row_tiles == 1) {
    if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, kInputs, 2, 1>>(stream, job);
    return launch_skinny<Skinny<kWeights, kInputs, 1, 1>>(stream, job);
  }
  if (row_tiles == 2) {
    if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, kInputs, 2, 2>>(stream, job);
    return launch_skinny<Skinny<kWeights, kInputs, 1, 2>>(stream, job);
  }
  if (row_tiles == 3) {
    if (most_tiles >= 4) return launch_skinny<Skinny<kWeights, kInputs, 4, 3>>(stream, job);
    return launch_skinny<Skinny<kWeights, kInputs, 1, 3>>(stream, job);
  }
  if (most_tiles >= 4) return launch_skinny<Skinny<kWeights, kInputs, 4, 4>>(stream, job);
  if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, kInputs, 2, 4>>(stream, job);
  return launch_skinny<Skinny<kWeights, kInputs, 1, 4>>(stream, job);
}

}  // namespace outrider::gpu
