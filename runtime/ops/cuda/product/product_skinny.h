// Products of 16-bit activations of up to 32 rows: bound by the weights' way from memory. A warp
// has one slice of the inner dimension for kTiles output tiles, whose fragments come by
// asynchronous copies, a few steps at once, into a ring of kPieces pieces in shared memory; up to 8
// warps of a block have a tile's slices, whose sums meet in shared memory and are folded in the
// tree. The first copies begin before the launch before has ended. (Of loads into registers ptxas
// makes batches that are waited for as a whole.)
//
// An output's bits: one chain of matrix instructions per slice, ascending from zero, then the tree;
// whatever kTiles, kRowTiles and the ring are, and the same as in product_wide.h.
#pragma once

#include "runtime/base/error.h"
#include "runtime/ops/cuda/product/product_epilogue.h"
#include "runtime/ops/cuda/product/product_fragments.h"

namespace outrider::gpu {

#ifndef OUTRIDER_PIECE
#define OUTRIDER_PIECE (kRowTiles == 1 && kTiles == 1 ? 2048 : 1024)
#endif
#ifndef OUTRIDER_RING
#define OUTRIDER_RING (kRowTiles == 1 || kTiles == 4 ? 8192 : 4096)
#endif
inline constexpr int32_t kMostSkinnyRows = 32;

// kTiles output tiles per warp, kRowTiles tiles of 8 rows.
template <Type kWeightType, Type kInputType, int kOutTiles, int kRowTiles_>
struct Skinny {
  static constexpr Type kWeights = kWeightType;
  static constexpr Type kInputs = kInputType;
  static constexpr int kTiles = kOutTiles;
  static constexpr int kRowTiles = kRowTiles_;
  using Weights = Fragment<kWeights, kInputs>;
  using Packed = typename Weights::Packed;
  static constexpr int kSums = kTiles * kRowTiles;
  static constexpr int kBlocksPerProcessor = kSums <= 2 ? 3 : 2;
  static constexpr int kStepBytes = 32 * sizeof(Packed);  // of a tile
  // A piece of the ring: of each tile as many bytes as are asked for at once.
  static constexpr int kPieceTileBytes = OUTRIDER_PIECE;
  static constexpr int kPieceSteps = kPieceTileBytes / kStepBytes;
  static constexpr int kPieceVectors = kPieceTileBytes / static_cast<int>(sizeof(Vector4));
  // Of a warp 8 KB are under way, so 192 KB of a processor. With more rows fewer: there more warps
  // hide more of the way of activations.
  static constexpr int kRingBytes = OUTRIDER_RING;
  static constexpr int kPieces = kRingBytes / (kPieceTileBytes * kTiles);
  static_assert(kPieces >= 2);
  // Steps whose activations, which come from the caches, are under way.
#ifndef OUTRIDER_IN
#define OUTRIDER_IN (kTiles == 4 ? 1 : kSums == 1 ? 4 : 2)
#endif
  static constexpr int kInputDepth = OUTRIDER_IN;
  static_assert(kPieceSteps % kInputDepth == 0);
  // Sums pass through shared memory this many output tiles at a time.
  static constexpr int kTilesPerPass = kTiles * kRowTiles <= 8 ? kTiles : 8 / kRowTiles;
  static_assert(kTiles % kTilesPerPass == 0);
  static constexpr int kSumTiles = kTilesPerPass * kRowTiles;  // of 16 x 8, one float4 a lane
  static constexpr uint32_t kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  // A warp's part of shared memory: its ring, and then its sums in the same place.
  static constexpr int kRingVectors = kRingBytes / static_cast<int>(sizeof(Vector4));
  static constexpr int kWarpVectors = 32 * kSumTiles > kRingVectors ? 32 * kSumTiles : kRingVectors;
  static constexpr size_t kSumBytes = kWarps * kWarpVectors * sizeof(Vector4);
  static constexpr size_t kSharedBytes = kSumBytes + kWarps * kPieces * sizeof(uint64_t);
  static_assert(kSharedBytes <= 163 << 10, "what a block of sm_80 can have");
};

// A block's threads: `groups` of num_slices warps.
struct SkinnyPlace {
  int32_t first_tile;  // of its group
  int32_t begin;       // of this warp's slice, in steps
  int32_t end;
};
template <typename Shape>
OUTRIDER_DEVICE SkinnyPlace skinny_place(const Matrix& weights) {
  const auto warp = static_cast<int32_t>(warp_id());
  const auto groups = static_cast<int32_t>(num_threads() / 32) / weights.num_slices;
  const int32_t group = static_cast<int32_t>(block_id().x) * groups + warp / weights.num_slices;
  // Groups past the end make the last tiles once more: the same bits to the same places.
  const int32_t last_first = whole_tiles(weights.n_out, kTileOutputs) - Shape::kTiles;
  const int32_t first_tile = group * Shape::kTiles;
  const int32_t slice = warp % weights.num_slices;
  return {first_tile < last_first ? first_tile : last_first,
          slice == 0 ? 0 : weights.slice_ends[slice - 1] / kTileInner,
          whole_tiles(weights.slice_ends[slice], kTileInner)};
}

// Which piece of its ring a warp takes next, and how often it has gone round.
struct RingPlace {
  int32_t piece = 0;
  uint32_t round = 0;
};
template <typename Shape>
OUTRIDER_DEVICE void move_on(RingPlace& place) {
  if (++place.piece < Shape::kPieces) return;
  place.piece = 0;
  ++place.round;
}
// Before a warp's first copies.
template <typename Shape>
OUTRIDER_DEVICE uint64_t* make_arrivals() {
  uint64_t* const arrivals = shared_memory<uint64_t>() + Shape::kSumBytes / sizeof(uint64_t) +
                             warp_id() * Shape::kPieces;
  init_arrivals(arrivals, Shape::kPieces);
  return arrivals;
}

// The stream of weights and the sums of one warp. Pointers go with the steps, so that all else
// about an address is known when it is compiled.
template <typename Shape>
struct SkinnyWarp {
  using Packed = typename Shape::Packed;
  static constexpr int kSteps = Shape::kPieceSteps;
  static constexpr int kStepVectors = Shape::kStepBytes / static_cast<int>(sizeof(Vector4));

  int32_t left;            // steps of the slice
  const Vector4* weights;  // of the first tile
  int32_t in_tiles;
  const Vector2* inputs[Shape::kRowTiles];  // this lane's
  Vector4* ring;                            // [kPieces][kTiles][kPieceVectors]
  uint64_t* arrivals;                       // [kPieces]
  RingPlace place;
  Vector2 inputs_ahead[Shape::kInputDepth][Shape::kRowTiles];
  float sums[Shape::kTiles][Shape::kRowTiles][4] = {};

  OUTRIDER_DEVICE SkinnyWarp(const ProductArgs& args,
                             int32_t first_tile,
                             int32_t begin,
                             int32_t end,
                             uint64_t* ring_arrivals,
                             const RingPlace& ring_place)
      : left(end - begin),
        in_tiles(whole_tiles(args.weights.n_in, kTileInner)),
        ring(shared_memory<Vector4>() + warp_id() * Shape::kWarpVectors),
        arrivals(ring_arrivals),
        place(ring_place) {
    const size_t first = static_cast<size_t>(first_tile) * static_cast<size_t>(in_tiles) +
                         static_cast<size_t>(begin);
    weights = static_cast<const Vector4*>(args.weights.data) + first * kStepVectors;
  }

  // Begins the copies of a piece, `ahead` steps from now, as far as there are so many.
  OUTRIDER_DEVICE void copy_weights(int32_t piece, int32_t ahead) {
    const int32_t there = left - ahead < kSteps ? left - ahead : kSteps;
    if (there > 0) {
      const auto bytes = static_cast<uint32_t>(there * Shape::kStepBytes);
      expect_bytes(arrivals + piece, bytes * Shape::kTiles);
      OUTRIDER_UNROLL
      for (int t = 0; t < Shape::kTiles; ++t) {
        copy_by_warp(ring + (piece * Shape::kTiles + t) * Shape::kPieceVectors,
                     weights + (t * in_tiles + ahead) * kStepVectors,
                     bytes,
                     arrivals + piece);
      }
    }
    end_copies_by_warp();
  }
  OUTRIDER_DEVICE void begin_weights() {
    int32_t piece = place.piece;
    OUTRIDER_UNROLL
    for (int i = 0; i < Shape::kPieces; ++i) {
      copy_weights(piece, i * kSteps);
      piece = piece + 1 == Shape::kPieces ? 0 : piece + 1;
    }
  }

  // A lane whose row is not there reads row 0 once more, whose sector is read anyway: as many
  // sectors are read as there are rows. Nobody looks at such a lane's sums.
  OUTRIDER_DEVICE void choose_inputs(const ProductArgs& args, int32_t begin, int32_t num_rows) {
    const auto lane = static_cast<int32_t>(lane_id());
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const bool is_there = r * kTileRows + lane / 4 < num_rows;
      inputs[r] = static_cast<const Vector2*>(args.in.data) + begin * 32 +
                  (is_there ? r * in_tiles * 32 + lane : lane % 4);
    }
  }
  // The same of rows that lie anywhere: a row is four lanes of a tile.
  template <typename Rows>
  OUTRIDER_DEVICE void gather_inputs(const ProductArgs& args, int32_t begin, const Rows& rows) {
    const auto lane = static_cast<int32_t>(lane_id());
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const int32_t i = r * kTileRows + lane / 4;
      const int32_t row = rows.in_row(i < rows.num_rows ? i : 0);
      const size_t tile = static_cast<size_t>(row / kTileRows) * static_cast<size_t>(in_tiles);
      inputs[r] = static_cast<const Vector2*>(args.in.data) +
                  (tile + static_cast<size_t>(begin)) * 32 + row % kTileRows * 4 + lane % 4;
    }
  }
  OUTRIDER_DEVICE void load_inputs(int slot, int ahead) {
    if (ahead >= left) return;
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      inputs_ahead[slot][r] = load_in_order(inputs[r] + ahead * 32);
    }
  }

  // Step i of a piece.
  OUTRIDER_DEVICE void multiply_step(int32_t piece, int i, int input_slot) {
    const auto* const fragments =
        reinterpret_cast<const Packed*>(ring + piece * Shape::kTiles * Shape::kPieceVectors) +
        lane_id();
    OUTRIDER_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t) {
      const Vector4 wide = Shape::Weights::widened(fragments[(t * kSteps + i) * 32]);
      OUTRIDER_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        multiply<Shape::kInputs>(sums[t][r], wide, inputs_ahead[input_slot][r]);
      }
    }
  }

  // All steps, whose first weights are under way.
  OUTRIDER_DEVICE void run() {
    OUTRIDER_UNROLL
    for (int d = 0; d < Shape::kInputDepth; ++d) load_inputs(d, d);
    for (; left > 0; left -= kSteps) {
      wait_copies_by_warp<Shape::kPieces - 1>(arrivals + place.piece, place.round);
      OUTRIDER_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        const int input_slot = i % Shape::kInputDepth;
        if (i < left) multiply_step(place.piece, i, input_slot);
        load_inputs(input_slot, i + Shape::kInputDepth);
      }
      sync_warp();  // all lanes have read the piece
      copy_weights(place.piece, Shape::kPieces * kSteps);
      move_on<Shape>(place);
      weights += kSteps * kStepVectors;
      OUTRIDER_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) inputs[r] += kSteps * 32;
    }
  }
};

// This thread's share of a group's tiles of sums in shared memory: folded and finished.
template <typename Shape, typename Rows>
OUTRIDER_DEVICE void finish_pieces(const Rows& rows, int32_t pass_tile, int32_t num_slices) {
  const auto warp = static_cast<int32_t>(warp_id());
  const int32_t slice = warp % num_slices;
  const auto lane = static_cast<int32_t>(lane_id());
  const float* const of_group = shared_memory<float>() + (warp - slice) * Shape::kWarpVectors * 4;
  for (int32_t piece = slice; piece < Shape::kSumTiles; piece += num_slices) {
    const int32_t out = (pass_tile + piece / Shape::kRowTiles) * kTileOutputs + lane / 4;
    const int32_t first_row = piece % Shape::kRowTiles * kTileRows + lane % 4 * 2;
    const LeafTerms low_terms = rows.terms(out);
    const LeafTerms high_terms = rows.terms(out + 8);
    OUTRIDER_ROLLED
    for (int32_t i = 0; i < 2; ++i) {
      if (first_row + i >= rows.num_rows) break;
      float low[kMaxSlices] = {};
      float high[kMaxSlices] = {};
      OUTRIDER_UNROLL
      for (int32_t s = 0; s < kMaxSlices; ++s) {
        if (s >= num_slices) continue;
        const float* const sums = of_group + (s * Shape::kWarpVectors + piece * 32 + lane) * 4 + i;
        low[s] = make_leaf(low_terms, s, sums[0]);
        high[s] = make_leaf(high_terms, s, sums[2]);
      }
      rows.finish(out, first_row + i, low, high, num_slices);
    }
  }
}

// The sums of all warps, which then are in place of their rings.
template <typename Shape, typename Rows>
OUTRIDER_DEVICE void finish_sums(const Rows& rows,
                                 const SkinnyWarp<Shape>& warp,
                                 int32_t first_tile,
                                 int32_t num_slices) {
  OUTRIDER_UNROLL
  for (int pass = 0; pass < Shape::kTiles; pass += Shape::kTilesPerPass) {
    auto* const mine = shared_memory<Vector4>() + warp_id() * Shape::kWarpVectors + lane_id();
    if (pass > 0) sync_block();
    OUTRIDER_UNROLL
    for (int piece = 0; piece < Shape::kSumTiles; ++piece) {
      const float(&sums)[4] = warp.sums[pass + piece / Shape::kRowTiles][piece % Shape::kRowTiles];
      mine[piece * 32] = {bits_of(sums[0]), bits_of(sums[1]), bits_of(sums[2]), bits_of(sums[3])};
    }
    sync_block();
    finish_pieces<Shape>(rows, first_tile + pass, num_slices);
  }
}

template <typename Shape>
OUTRIDER_KERNEL(Shape::kThreads, Shape::kBlocksPerProcessor)
void skinny_product(ProductJob job) {
  const Matrix& weights = job.product.weights;
  const SkinnyPlace place = skinny_place<Shape>(weights);
  SkinnyWarp<Shape> warp(
      job.product, place.first_tile, place.begin, place.end, make_arrivals<Shape>(), {});
  warp.begin_weights();
  const WholeRows rows = {job, rows_of(job.product)};
  warp.choose_inputs(job.product, place.begin, rows.num_rows);
  wait_for_predecessor();
  let_successor_begin();
  warp.run();
  finish_sums(rows, warp, place.first_tile, weights.num_slices);
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
#ifndef OUTRIDER_WANTED_ONE
#define OUTRIDER_WANTED_ONE 264
#endif
inline constexpr int32_t kWantedBlocks = OUTRIDER_WANTED_ONE;
#ifndef OUTRIDER_WANTED_BLOCKS
#define OUTRIDER_WANTED_BLOCKS 128
#endif
inline constexpr int32_t kWantedBlocksOfMany = OUTRIDER_WANTED_BLOCKS;

template <Type kWeights, Type kInputs>
void run_skinny(Stream& stream, const ProductJob& job) {
  const Matrix& weights = job.product.weights;
  const int32_t row_tiles = whole_tiles(job.product.max_rows, kTileRows);
  const int32_t wanted = row_tiles == 1 ? kWantedBlocks : kWantedBlocksOfMany;
  const int32_t most_tiles =
      whole_tiles(weights.n_out, kTileOutputs) * weights.num_slices / (kMaxSlices * wanted);
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
    if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, kInputs, 2, 3>>(stream, job);
    return launch_skinny<Skinny<kWeights, kInputs, 1, 3>>(stream, job);
  }
  if (most_tiles >= 4) return launch_skinny<Skinny<kWeights, kInputs, 4, 4>>(stream, job);
  if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, kInputs, 2, 4>>(stream, job);
  return launch_skinny<Skinny<kWeights, kInputs, 1, 4>>(stream, job);
}

}  // namespace outrider::gpu
