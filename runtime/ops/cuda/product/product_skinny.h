// Products of 16-bit activations of up to 64 rows: bound by the weights' way from memory. A warp
// has one slice of the inner dimension for kTiles output tiles, whose fragments come by
// asynchronous copies, a few steps at once, into a ring of kPieces pieces in shared memory; up to 8
// warps of a block have a tile's slices, whose sums meet in shared memory and are folded in the
// tree. The first copies begin before the launch before has ended. (Of loads into registers ptxas
// makes batches that are waited for as a whole.)
//
// An output's bits: one chain of matrix instructions per slice, ascending from zero, then the tree;
// whatever kTiles, kRowTiles and the ring are, and the same as in product_wide.h.
#pragma once

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/product/product_epilogue.h"
#include "runtime/ops/cuda/product/product_fragments.h"

namespace outrider::gpu {

inline constexpr int32_t kMostSkinnyRows = 64;

// kTiles output tiles per warp, kRowTiles tiles of 8 rows.
template <Type kWeights, int kOutTiles, int kRowTiles_>
struct Skinny {
  static constexpr int kTiles = kOutTiles;
  static constexpr int kRowTiles = kRowTiles_;
  using Weights = Fragment<kWeights>;
  static constexpr Type kInputs = Weights::kInputs;
  using Packed = typename Weights::Packed;
  static constexpr int kSums = kTiles * kRowTiles;
  // All 64 rows of a group: those that are not there are read too, for one address serves all.
  static constexpr bool kWholeGroup = kRowTiles * kTileRows == kGroupRows;
  static constexpr int kRowAddresses = kWholeGroup ? 1 : kRowTiles;
  static constexpr int kBlocksPerProcessor = kWholeGroup ? 1 : kSums <= 2 ? 3 : 2;
  static constexpr int kStepBytes = 32 * sizeof(Packed);  // of a tile
  // So many are under way of a warp (of three tiles 12 KB), 96 to 192 KB of a multiprocessor. Of up
  // to 32 rows twice as much, or half of it, was slower on an H200.
  static constexpr int kRingBytes = kWholeGroup ? 16384 : 8192;
  // Of each tile as many bytes are asked for at once. Long copies are fast: with a half of these an
  // 8B's step took 4% longer.
  static constexpr int kPieceTileBytes = kTiles == 4 ? 1024 : kSums == 1 ? 4096 : 2048;
  static constexpr int kPieceSteps = kPieceTileBytes / kStepBytes;
  static constexpr int kPieceVectors = kPieceTileBytes / static_cast<int>(sizeof(Vector4));
  static constexpr int kPieces = kRingBytes / (kPieceTileBytes * kTiles);
  static_assert(kPieces >= 2);
  // Steps whose activations, which come from the caches, are under way.
  // With two of a whole group an 8B's step took 8.0 ms on an H200, with four 7.4.
  static constexpr int kInputDepth = kSums > 4 && !kWholeGroup ? 2 : 4;
  static_assert(kPieceSteps % kInputDepth == 0);
  // Steps without a branch in between, so that they overlap, as far as registers reach: with a
  // branch after each an 8B in fp8 took 1.4 times as long on an H200.
  static constexpr int kStepsTogether = kRowTiles > 3 ? kInputDepth : kPieceSteps;
  // Sums pass through shared memory this many output tiles at a time.
  static constexpr int kTilesPerPass = kTiles * kRowTiles <= 8 ? kTiles : 8 / kRowTiles;
  static_assert(kTiles % kTilesPerPass == 0);
  static constexpr int kSumTiles = kTilesPerPass * kRowTiles;  // of 16 x 8, one float4 a lane
  static constexpr uint32_t kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  // Of a warp in shared memory: its ring, its sums, and the ring's arrivals.
  static constexpr int kRingVectors = kRingBytes / static_cast<int>(sizeof(Vector4));
  static constexpr int kSumBytes = 32 * kSumTiles * static_cast<int>(sizeof(Vector4));
  static constexpr size_t kSharedBytes =
      kWarps * (kRingBytes + kSumBytes + kPieces * sizeof(uint64_t));
  static_assert(kSharedBytes <= 163 << 10, "what a block of sm_80 can have");
};

// A block's warps are `groups` of num_slices warps, a group has kTiles output tiles. Of a matrix
// with more groups than blocks a block takes several, one after the other: its turns.
template <typename Shape>
constexpr int32_t num_turns(const Matrix& weights) {
  const int32_t groups = Shape::kWarps / weights.num_slices;
  return whole_tiles(whole_tiles(weights.n_out, kTileOutputs), groups * Shape::kTiles);
}
struct Turns {
  int32_t first;
  int32_t stride;
  int32_t end;
};

// The stream of weights and the sums of one warp. The stream goes on from turn to turn: copies of
// the next one begin before the last of this one are used.
template <typename Shape>
struct SkinnyWarp {
  using Packed = typename Shape::Packed;
  static constexpr int kSteps = Shape::kPieceSteps;
  static constexpr int kStepVectors = Shape::kStepBytes / static_cast<int>(sizeof(Vector4));
  static constexpr int kGroupVectors = kGroupRows / kTileRows * 32;  // of activations, a step

  const Matrix& matrix;
  int32_t in_tiles;
  int32_t begin;       // of its slice, in steps
  int32_t num_steps;   // of its slice
  Vector4* ring;       // [kPieces][kTiles][kPieceVectors]
  uint64_t* arrivals;  // [kPieces]
  // The copies to come.
  Turns turns;
  int32_t first_tile = 0;  // of the matrix' tiles
  int32_t to_copy = 0;     // steps of the turn that copies have come to
  const Vector4* weights = nullptr;
  // What has come: which piece is next, and how often its arrival has been waited for.
  int32_t piece = 0;
  uint32_t round = 0;
  const Vector2* inputs[Shape::kRowAddresses];  // this lane's
  Vector2 inputs_ahead[Shape::kInputDepth][Shape::kRowTiles];
  float sums[Shape::kTiles][Shape::kRowTiles][4];

  OUTRIDER_DEVICE explicit SkinnyWarp(const Matrix& of)
      : matrix(of),
        in_tiles(whole_tiles(of.n_in, kTileInner)),
        ring(shared_memory<Vector4>() + warp_id() * Shape::kRingVectors),
        arrivals(shared_memory<uint64_t>() +
                 (Shape::kRingBytes + Shape::kSumBytes) * Shape::kWarps / sizeof(uint64_t) +
                 warp_id() * Shape::kPieces) {
    const int32_t slice = static_cast<int32_t>(warp_id()) % of.num_slices;
    begin = slice == 0 ? 0 : of.slice_ends[slice - 1] / kTileInner;
    num_steps = whole_tiles(of.slice_ends[slice], kTileInner) - begin;
    init_arrivals(arrivals, Shape::kPieces);
  }

  // The first output tile of this warp's group. Groups past the end make the last tiles once more:
  // the same bits to the same places.
  OUTRIDER_DEVICE int32_t tile_of(int32_t turn) const {
    const int32_t groups = Shape::kWarps / matrix.num_slices;
    const int32_t group = turn * groups + static_cast<int32_t>(warp_id()) / matrix.num_slices;
    const int32_t last = whole_tiles(matrix.n_out, kTileOutputs) - Shape::kTiles;
    return group * Shape::kTiles < last ? group * Shape::kTiles : last;
  }

  OUTRIDER_DEVICE void find_weights() {
    to_copy = turns.first < turns.end ? num_steps : 0;
    const auto tile = static_cast<size_t>(first_tile + tile_of(turns.first));
    weights = static_cast<const Vector4*>(matrix.data) +
              (tile * static_cast<size_t>(in_tiles) + static_cast<size_t>(begin)) * kStepVectors;
  }
  // Begins the copies of the next piece there is.
  OUTRIDER_DEVICE void copy_weights(int32_t to) {
    if (to_copy > 0) {
      const int32_t now = to_copy < kSteps ? to_copy : kSteps;
      const auto bytes = static_cast<uint32_t>(now * Shape::kStepBytes);
      expect_bytes(arrivals + to, bytes * Shape::kTiles);
      OUTRIDER_UNROLL
      for (int t = 0; t < Shape::kTiles; ++t) {
        copy_by_warp(ring + (to * Shape::kTiles + t) * Shape::kPieceVectors,
                     weights + t * in_tiles * kStepVectors,
                     bytes,
                     arrivals + to);
      }
      weights += kSteps * kStepVectors;
      to_copy -= kSteps;
      if (to_copy <= 0) {
        turns.first += turns.stride;
        find_weights();
      }
    }
    end_copies_by_warp();
  }
  // The copies of these turns, of which those before have all been used.
  OUTRIDER_DEVICE void begin_weights(const Turns& of, int32_t tile) {
    turns = of;
    first_tile = tile;
    find_weights();
    int32_t to = piece;
    OUTRIDER_UNROLL
    for (int i = 0; i < Shape::kPieces; ++i) {
      copy_weights(to);
      to = to + 1 == Shape::kPieces ? 0 : to + 1;
    }
  }

  // A lane whose row is not there reads row 0 once more, whose sector is read anyway: as many
  // sectors are read as there are rows. Nobody looks at such a lane's sums.
  OUTRIDER_DEVICE void choose_inputs(const ProductArgs& args, int32_t num_rows) {
    const auto lane = static_cast<int32_t>(lane_id());
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowAddresses; ++r) {
      const bool is_there = Shape::kWholeGroup || r * kTileRows + lane / 4 < num_rows;
      inputs[r] = static_cast<const Vector2*>(args.in.data) + begin * kGroupVectors +
                  (is_there ? r * 32 : 0) +
                  activation_slot(static_cast<uint32_t>(is_there ? lane : lane % 4));
    }
  }
  // The same of rows that lie anywhere: a row is four lanes of a tile.
  template <typename Rows>
  OUTRIDER_DEVICE void gather_inputs(const ProductArgs& args, const Rows& rows) {
    const auto lane = static_cast<int32_t>(lane_id());
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const int32_t i = r * kTileRows + lane / 4;
      const int32_t row = rows.in_row(i < rows.num_rows ? i : 0);
      const size_t group = static_cast<size_t>(row / kGroupRows) * static_cast<size_t>(in_tiles);
      inputs[r] = static_cast<const Vector2*>(args.in.data) +
                  (group + static_cast<size_t>(begin)) * kGroupVectors +
                  row % kGroupRows / kTileRows * 32 +
                  activation_slot(static_cast<uint32_t>(row % kTileRows * 4 + lane % 4));
    }
  }
  OUTRIDER_DEVICE void load_inputs(int slot, int ahead) {
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const Vector2* const from = inputs[r % Shape::kRowAddresses] + r / Shape::kRowAddresses * 32;
      inputs_ahead[slot][r] = load_in_order(from + ahead * kGroupVectors);
    }
  }

  // Step i of the piece.
  OUTRIDER_DEVICE void multiply_step(int i, int input_slot) {
    const auto* const fragments =
        reinterpret_cast<const Packed*>(ring + piece * Shape::kTiles * Shape::kPieceVectors) +
        weight_slot(lane_id());
    OUTRIDER_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t) {
      const Vector4 wide = Shape::Weights::widened(fragments[(t * kSteps + i) * 32]);
      OUTRIDER_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        multiply<Shape::kInputs>(sums[t][r], wide, inputs_ahead[input_slot][r]);
      }
    }
  }

  // The sums of a turn, whose weights are under way.
  OUTRIDER_DEVICE void run() {
    OUTRIDER_UNROLL
    for (auto& of_tile : sums) {
      OUTRIDER_UNROLL
      for (auto& tile : of_tile) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
    }
    OUTRIDER_UNROLL
    for (int d = 0; d < Shape::kInputDepth; ++d) {
      if (d < num_steps) load_inputs(d, d);
    }
    for (int32_t left = num_steps; left > 0; left -= kSteps) {
      wait_copies_by_warp<Shape::kPieces - 1>(arrivals + piece, round);
      if (left >= kSteps) {
        OUTRIDER_ROLLED
        for (int from = 0; from < kSteps; from += Shape::kStepsTogether) {
          OUTRIDER_UNROLL
          for (int i = from; i < from + Shape::kStepsTogether; ++i) {
            const int input_slot = (i - from) % Shape::kInputDepth;
            multiply_step(i, input_slot);
            const int ahead = i + Shape::kInputDepth;
            load_inputs(input_slot, ahead < left ? ahead : left - 1);
          }
        }
      } else {
        OUTRIDER_UNROLL
        for (int i = 0; i < kSteps; ++i) {
          const int input_slot = i % Shape::kInputDepth;
          if (i < left) multiply_step(i, input_slot);
          if (i + Shape::kInputDepth < left) load_inputs(input_slot, i + Shape::kInputDepth);
        }
      }
      sync_warp();  // all lanes have read the piece
      copy_weights(piece);
      if (++piece == Shape::kPieces) {
        piece = 0;
        ++round;
      }
      OUTRIDER_UNROLL
      for (auto& from : inputs) from += kSteps * kGroupVectors;
    }
  }
};

template <typename Shape>
OUTRIDER_DEVICE Vector4* sums_of_warp(int32_t warp) {
  return shared_memory<Vector4>() + Shape::kWarps * Shape::kRingVectors +
         warp * (32 * Shape::kSumTiles);
}

// This thread's share of a group's tiles of sums in shared memory: folded and finished.
template <typename Shape, typename Rows>
OUTRIDER_DEVICE void finish_pieces(const Rows& rows, int32_t pass_tile, int32_t num_slices) {
  const auto warp = static_cast<int32_t>(warp_id());
  const int32_t slice = warp % num_slices;
  const auto lane = static_cast<int32_t>(lane_id());
  const auto* const of_group = reinterpret_cast<const float*>(sums_of_warp<Shape>(warp - slice));
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
        const float* const sums = of_group + ((s * Shape::kSumTiles + piece) * 32 + lane) * 4 + i;
        low[s] = make_leaf(low_terms, s, sums[0]);
        high[s] = make_leaf(high_terms, s, sums[2]);
      }
      rows.finish(out, first_row + i, low, high, num_slices);
    }
  }
}

// The sums of all warps, met in shared memory.
template <typename Shape, typename Rows>
OUTRIDER_DEVICE void finish_sums(const Rows& rows,
                                 const SkinnyWarp<Shape>& warp,
                                 int32_t first_tile,
                                 int32_t num_slices) {
  OUTRIDER_UNROLL
  for (int pass = 0; pass < Shape::kTiles; pass += Shape::kTilesPerPass) {
    sync_block();  // those of the pass before are read
    Vector4* const mine = sums_of_warp<Shape>(static_cast<int32_t>(warp_id())) + lane_id();
    OUTRIDER_UNROLL
    for (int tile = 0; tile < Shape::kSumTiles; ++tile) {
      const float(&sums)[4] = warp.sums[pass + tile / Shape::kRowTiles][tile % Shape::kRowTiles];
      mine[tile * 32] = {bits_of(sums[0]), bits_of(sums[1]), bits_of(sums[2]), bits_of(sums[3])};
    }
    sync_block();
    finish_pieces<Shape>(rows, first_tile + pass, num_slices);
  }
}

template <typename Shape>
OUTRIDER_KERNEL(Shape::kThreads, Shape::kBlocksPerProcessor)
void skinny_product(ProductJob job) {
  const Matrix& weights = job.product.weights;
  const Turns turns = {static_cast<int32_t>(block_id().x),
                       static_cast<int32_t>(num_blocks().x),
                       num_turns<Shape>(weights)};
  SkinnyWarp<Shape> warp(weights);
  warp.begin_weights(turns, 0);
  const WholeRows rows = {job, rows_of(job.product)};
  wait_for_predecessor();
  let_successor_begin();
  OUTRIDER_ROLLED
  for (int32_t turn = turns.first; turn < turns.end; turn += turns.stride) {
    warp.choose_inputs(job.product, rows.num_rows);
    warp.run();
    finish_sums(rows, warp, warp.tile_of(turn), weights.num_slices);
  }
}

// Blocks that an H200 has room for at once.
template <typename Shape>
inline constexpr int32_t kBlocksAtOnceOfProduct = 132 * Shape::kBlocksPerProcessor;

template <typename Shape>
void launch_skinny(Stream& stream, const ProductJob& job) {
  OUTRIDER_CHECK(whole_tiles(job.product.weights.n_out, kTileOutputs) >= Shape::kTiles);
  const int32_t turns = num_turns<Shape>(job.product.weights);
  const int32_t blocks = std::min(turns, kBlocksAtOnceOfProduct<Shape>);
  launch(stream,
         skinny_product<Shape>,
         {.grid = {static_cast<uint32_t>(blocks)},
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes,
          .overlaps = true},
         job);
}

// More output tiles per warp mean fewer readings of the activations, but fewer blocks: two per
// processor of a large device are wanted, of a whole group's, which have one to themselves, one.
inline constexpr int32_t kWantedBlocks = 264;
inline constexpr int32_t kWantedGroupBlocks = 128;

template <Type kWeights>
void run_skinny(Stream& stream, const ProductJob& job) {
  const Matrix& weights = job.product.weights;
  const int32_t row_tiles = whole_tiles(job.product.max_rows, kTileRows);
  const int32_t blocks =  // of one tile per warp
      whole_tiles(weights.n_out, kTileOutputs) * weights.num_slices / kMaxSlices;
  if (row_tiles > 4) {
    if (blocks >= 3 * kWantedGroupBlocks) return launch_skinny<Skinny<kWeights, 3, 8>>(stream, job);
    if (blocks >= 2 * kWantedGroupBlocks) return launch_skinny<Skinny<kWeights, 2, 8>>(stream, job);
    return launch_skinny<Skinny<kWeights, 1, 8>>(stream, job);
  }
  const int32_t most_tiles = blocks / kWantedBlocks;
  if (row_tiles == 1) {
    if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, 2, 1>>(stream, job);
    return launch_skinny<Skinny<kWeights, 1, 1>>(stream, job);
  }
  if (row_tiles == 2) {
    if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, 2, 2>>(stream, job);
    return launch_skinny<Skinny<kWeights, 1, 2>>(stream, job);
  }
  if (row_tiles == 3) {
    if (most_tiles >= 4) return launch_skinny<Skinny<kWeights, 4, 3>>(stream, job);
    if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, 2, 3>>(stream, job);
    return launch_skinny<Skinny<kWeights, 1, 3>>(stream, job);
  }
  if (most_tiles >= 4) return launch_skinny<Skinny<kWeights, 4, 4>>(stream, job);
  if (most_tiles >= 2) return launch_skinny<Skinny<kWeights, 2, 4>>(stream, job);
  return launch_skinny<Skinny<kWeights, 1, 4>>(stream, job);
}

}  // namespace outrider::gpu
