// Products of 16-bit activations of many rows (prefill): bound by arithmetic. A block has 128
// outputs x 64 rows, or 32 x 64 where that would be too few blocks, a warp 32 x 32 of them; weights
// and activations come through shared memory in stages, copied ahead.
//
// Every output has the bits that product_skinny.h gives it: the slices are summed one after the
// other, each by the same chain of matrix instructions from zero, and folded in the same tree on
// the way, as a binary counter adds: of 8 slices at most three partial folds wait in registers.
#pragma once

#include "runtime/ops/cuda/product/product_epilogue.h"
#include "runtime/ops/cuda/product/product_fragments.h"

namespace outrider::gpu {

template <Type kWeightType, Type kInputType, int kAcross>
struct Wide {
  static constexpr Type kInputs = kInputType;
  using Weights = Fragment<kWeightType, kInputType>;
  using Packed = typename Weights::Packed;
  static constexpr int kTiles = 2;     // of outputs, of a warp
  static constexpr int kRowTiles = 4;  // of 8 rows, of a warp
  static constexpr int kWarpsAcross = kAcross;
  static constexpr int kWarpsDown = 2;
  static constexpr int kBlockTiles = kTiles * kWarpsAcross;
  static constexpr int kBlockRowTiles = kRowTiles * kWarpsDown;
  static constexpr uint32_t kThreads = 32 * kWarpsAcross * kWarpsDown;
  static constexpr int kSteps = 4;                      // of 16 inputs, of a stage
  static constexpr int kStages = kAcross == 1 ? 8 : 4;  // of which all but one are under way
  static constexpr size_t kWeightBytes = sizeof(Packed) * 32 * kSteps * kBlockTiles;
  static constexpr size_t kInputBytes = sizeof(Vector2) * 32 * kSteps * kBlockRowTiles;
  static constexpr size_t kSharedBytes = kStages * (kWeightBytes + kInputBytes);
  static_assert(kSharedBytes <= 163 << 10, "what a block of sm_80 can have");
};

// A place in the order in which the inner dimension is gone through: slices ascending, steps within
// a slice ascending, at most kSteps of them at a time.
struct InnerPlace {
  int32_t slice = 0;
  int32_t step = 0;
  int32_t slice_end = 0;

  OUTRIDER_DEVICE explicit InnerPlace(const Matrix& weights)
      : slice_end(whole_tiles(weights.slice_ends[0], kTileInner)) {}
  OUTRIDER_DEVICE int32_t count(int32_t most) const {
    return slice_end - step < most ? slice_end - step : most;
  }
  OUTRIDER_DEVICE bool ends_slice(int32_t most) const { return slice_end - step <= most; }
  OUTRIDER_DEVICE bool is_past(const Matrix& weights) const { return slice >= weights.num_slices; }
  OUTRIDER_DEVICE void advance(const Matrix& weights, int32_t most) {
    if (!ends_slice(most)) {
      step += most;
      return;
    }
    step = slice_end;
    ++slice;
    if (slice < weights.num_slices) slice_end = whole_tiles(weights.slice_ends[slice], kTileInner);
  }
};

// Copies `tiles` tiles, from first_tile on, of the steps at `place` to [tile][kSteps][32 lanes];
// what lies beyond num_tiles or the steps is zero.
template <typename Element, int kTiles, int kSteps, uint32_t kThreads>
OUTRIDER_DEVICE void copy_stage(Element* shared,
                                const void* from,
                                const InnerPlace& place,
                                int32_t in_tiles,
                                int32_t first_tile,
                                int32_t num_tiles) {
  constexpr uint32_t kTileBytes = sizeof(Element) * 32 * kSteps;
  constexpr uint32_t kPieces = kTileBytes / 16;
  const auto valid_bytes = static_cast<uint32_t>(place.count(kSteps)) * sizeof(Element) * 32;
  OUTRIDER_ROLLED
  for (uint32_t piece = thread_id(); piece < kPieces * kTiles; piece += kThreads) {
    const uint32_t tile = piece / kPieces;
    const uint32_t byte = piece % kPieces * 16;
    const bool is_there = first_tile + static_cast<int32_t>(tile) < num_tiles && byte < valid_bytes;
    const size_t first = static_cast<size_t>(first_tile + static_cast<int32_t>(tile)) *
                             static_cast<size_t>(in_tiles) +
                         static_cast<size_t>(place.step);
    const auto* const source = static_cast<const unsigned char*>(from);
    copy_async_16(reinterpret_cast<unsigned char*>(shared) + tile * kTileBytes + byte,
                  is_there ? source + first * sizeof(Element) * 32 + byte : source,
                  is_there);
  }
}

// The sums of one warp, [output tile][row tile][4], and the partial folds that wait for their
// neighbour.
template <typename Shape>
struct WideSums {
  using Sums = float[Shape::kTiles][Shape::kRowTiles][4];
  Sums now = {};
  Sums waiting[3];

  // The slice that `now` holds is done. After the last one `now` is the product.
  OUTRIDER_DEVICE void end_slice(const ProductArgs& product, int32_t first_tile, int32_t slice) {
    OUTRIDER_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t) {
      const auto out = (first_tile + t) * kTileOutputs + static_cast<int32_t>(lane_id()) / 4;
      const LeafTerms terms[2] = {leaf_terms(product, out), leaf_terms(product, out + 8)};
      OUTRIDER_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        OUTRIDER_UNROLL
        for (int i = 0; i < 4; ++i) now[t][r][i] = make_leaf(terms[i / 2], slice, now[t][r][i]);
      }
    }
    if ((slice & 1) == 0) return keep(waiting[0]);
    fold(waiting[0]);
    if ((slice & 2) == 0) return keep(waiting[1]);
    fold(waiting[1]);
    if ((slice & 4) == 0) return keep(waiting[2]);
    fold(waiting[2]);
  }
  OUTRIDER_DEVICE void clear() {
    each([](float& now_sum, float&) { now_sum = 0.0f; }, now);
  }

 private:
  OUTRIDER_DEVICE void keep(Sums& to) {
    each([](float& now_sum, float& other) { other = now_sum; }, to);
  }
  OUTRIDER_DEVICE void fold(Sums& earlier) {
    each([](float& now_sum, float& other) { now_sum = exact_add(other, now_sum); }, earlier);
  }
  template <typename Change>
  OUTRIDER_DEVICE void each(const Change& change, Sums& other) {
    OUTRIDER_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t) {
      OUTRIDER_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        OUTRIDER_UNROLL
        for (int i = 0; i < 4; ++i) change(now[t][r][i], other[t][r][i]);
      }
    }
  }
};

template <typename Shape>
OUTRIDER_DEVICE void multiply_stage(WideSums<Shape>& sums,
                                    const typename Shape::Packed* weights,
                                    const Vector2* inputs,
                                    int32_t count) {
  const uint32_t across = warp_id() % Shape::kWarpsAcross * Shape::kTiles;
  const uint32_t down = warp_id() / Shape::kWarpsAcross * Shape::kRowTiles;
  OUTRIDER_UNROLL
  for (int step = 0; step < Shape::kSteps; ++step) {
    if (step >= count) break;
    Vector2 rows[Shape::kRowTiles];
    OUTRIDER_UNROLL
    for (uint32_t r = 0; r < Shape::kRowTiles; ++r) {
      rows[r] = inputs[((down + r) * Shape::kSteps + static_cast<uint32_t>(step)) * 32 + lane_id()];
    }
    OUTRIDER_UNROLL
    for (uint32_t t = 0; t < Shape::kTiles; ++t) {
      const Vector4 wide = Shape::Weights::widened(
          weights[((across + t) * Shape::kSteps + static_cast<uint32_t>(step)) * 32 + lane_id()]);
      OUTRIDER_UNROLL
      for (uint32_t r = 0; r < Shape::kRowTiles; ++r) {
        multiply<Shape::kInputs>(sums.now[t][r], wide, rows[r]);
      }
    }
  }
}

template <typename Shape>
OUTRIDER_KERNEL(Shape::kThreads)
void wide_product(ProductJob job) {
  const ProductArgs& product = job.product;
  const Matrix& matrix = product.weights;
  wait_for_predecessor();
  let_successor_begin();
  const int32_t num_rows = rows_of(product);
  const auto first_row_tile = static_cast<int32_t>(block_id().x) * Shape::kBlockRowTiles;
  const auto first_tile = static_cast<int32_t>(block_id().y) * Shape::kBlockTiles;
  if (first_row_tile * kTileRows >= num_rows) return;
  const int32_t in_tiles = whole_tiles(matrix.n_in, kTileInner);
  const int32_t out_tiles = whole_tiles(matrix.n_out, kTileOutputs);
  const int32_t row_tiles = whole_tiles(num_rows, kTileRows);

  auto* const inputs = shared_memory<Vector2>();
  auto* const weights = reinterpret_cast<typename Shape::Packed*>(
      shared_memory<unsigned char>() + Shape::kStages * Shape::kInputBytes);
  constexpr uint32_t kInputStage = Shape::kInputBytes / sizeof(Vector2);
  constexpr uint32_t kWeightStage = Shape::kWeightBytes / sizeof(typename Shape::Packed);
  InnerPlace asked(matrix);
  const auto ask = [&](uint32_t stage) {
    if (!asked.is_past(matrix)) {
      copy_stage<typename Shape::Packed, Shape::kBlockTiles, Shape::kSteps, Shape::kThreads>(
          weights + stage * kWeightStage, matrix.data, asked, in_tiles, first_tile, out_tiles);
      copy_stage<Vector2, Shape::kBlockRowTiles, Shape::kSteps, Shape::kThreads>(
          inputs + stage * kInputStage,
          product.in.data,
          asked,
          in_tiles,
          first_row_tile,
          row_tiles);
      asked.advance(matrix, Shape::kSteps);
    }
    end_copy_group();
  };

  const int32_t warp_tile =
      first_tile + static_cast<int32_t>(warp_id()) % Shape::kWarpsAcross * Shape::kTiles;
  WideSums<Shape> sums;
  for (uint32_t stage = 0; stage + 1 < Shape::kStages; ++stage) ask(stage);
  uint32_t stage = 0;
  for (InnerPlace now(matrix); !now.is_past(matrix); now.advance(matrix, Shape::kSteps)) {
    wait_copies<Shape::kStages - 2>();
    sync_block();  // this stage has come, and the one before has been read by all
    ask((stage + Shape::kStages - 1) % Shape::kStages);
    multiply_stage<Shape>(sums,
                          weights + stage * kWeightStage,
                          inputs + stage * kInputStage,
                          now.count(Shape::kSteps));
    stage = (stage + 1) % Shape::kStages;
    if (!now.ends_slice(Shape::kSteps)) continue;
    sums.end_slice(product, warp_tile, now.slice);
    if (now.slice + 1 < matrix.num_slices) sums.clear();
  }

  const auto lane = static_cast<int32_t>(lane_id());
  const int32_t warp_row =
      (first_row_tile + static_cast<int32_t>(warp_id()) / Shape::kWarpsAcross * Shape::kRowTiles) *
          kTileRows +
      lane % 4 * 2;
  OUTRIDER_UNROLL
  for (int t = 0; t < Shape::kTiles; ++t) {
    const int32_t out = (warp_tile + t) * kTileOutputs + lane / 4;
    if (warp_tile + t >= out_tiles) continue;
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      OUTRIDER_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int32_t row = warp_row + r * kTileRows + i;
        if (row < num_rows) {
          finish_pair(job, out, row, sums.now[t][r][i], sums.now[t][r][2 + i]);
        }
      }
    }
  }
}

template <typename Shape>
Grid wide_grid(const ProductArgs& product) {
  const int32_t row_tiles = whole_tiles(product.max_rows, kTileRows);
  const int32_t out_tiles = whole_tiles(product.weights.n_out, kTileOutputs);
  return {static_cast<uint32_t>(whole_tiles(row_tiles, Shape::kBlockRowTiles)),
          static_cast<uint32_t>(whole_tiles(out_tiles, Shape::kBlockTiles))};
}

template <typename Shape>
void launch_wide(Stream& stream, const ProductJob& job) {
  launch(stream,
         wide_product<Shape>,
         {.grid = wide_grid<Shape>(job.product),
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes,
          .overlaps = true},
         job);
}

// One block per processor of a large device is wanted.
inline constexpr uint32_t kWantedWideBlocks = 132;

template <Type kWeights, Type kInputs>
void run_wide(Stream& stream, const ProductJob& job) {
  using Broad = Wide<kWeights, kInputs, 4>;
  const Grid grid = wide_grid<Broad>(job.product);
  if (grid.x * grid.y >= kWantedWideBlocks) return launch_wide<Broad>(stream, job);
  launch_wide<Wide<kWeights, kInputs, 1>>(stream, job);
}

}  // namespace outrider::gpu
