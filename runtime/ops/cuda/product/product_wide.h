// Products of 16-bit activations of many rows (prompts, many sequences). A block has 128 outputs x
// 128 rows, whose slices it sums one after the other: bound by arithmetic. Or, where that would be
// too few blocks, 64 x 64, whose slices four teams of warps share: bound by the weights' way from
// memory. A warp has 16 outputs and all rows; weights and activations come through shared memory in
// stages, copied ahead. From sm_90 on four warps multiply together (wgmma).
//
// Every output has the bits that product_skinny.h gives it: a slice is summed by a chain of matrix
// instructions from zero over the same inputs, and slices are folded in the same tree; those that
// follow each other on the way, as a binary counter adds, so that of 8 at most three partial folds
// wait, one in registers and two in shared memory. (An H100's wgmma gives the bits of its mma:
// tests/gpu/product_bits_test.cpp.)
#pragma once

#include "runtime/ops/cuda/product/product_epilogue.h"
#include "runtime/ops/cuda/product/product_fragments.h"

namespace outrider::gpu {

// kOutGroups x 64 outputs, kRowGroups x 64 rows, kTeams that share the slices.
template <Type kWeights, int kOutGroups, int kNumRowGroups, int kNumTeams>
struct Wide {
  using Weights = Fragment<kWeights>;
  static constexpr Type kInputs = Weights::kInputs;
  using Packed = typename Weights::Packed;
  static constexpr int kRowGroups = kNumRowGroups;
  static constexpr int kRowTiles = 8 * kRowGroups;  // of 8 rows
  static constexpr int kTiles = 4 * kOutGroups;     // of outputs, one a warp of each team
  static constexpr int kTeams = kNumTeams;
  static constexpr uint32_t kTeamThreads = 32 * kTiles;
  static constexpr uint32_t kThreads = kTeams * kTeamThreads;
  // Steps of 16 inputs that a stage has, and stages: one is in use, the others are under way.
  // Prompts of 512 rows on an H200, tokens/s: 4 and 3 20,000; 2 and 6 17,800.
  static constexpr int kSteps = kTeams == 1 ? 4 : 2;
  static constexpr int kStages = kTeams == 1 ? 3 : 5;
  static constexpr int kPackedStep = 32 * sizeof(Packed) / sizeof(Vector4);      // of a tile
  static constexpr int kInputStep = 8 * 32 * sizeof(Vector2) / sizeof(Vector4);  // of a group
  // In shared memory: [kTeams][kStages][kRowGroups][kSteps][kInputStep], [kTeams][kStages][kTiles]
  // [kSteps][kPackedStep], [kWaiting][kRowTiles][kThreads] of sums that wait, [kTeams][kStages]
  // arrivals. In the end the sums of all teams lie in the place of the first two.
  static constexpr int kTeamInputs = kStages * kRowGroups * kSteps * kInputStep;
  static constexpr int kTeamPacked = kStages * kTiles * kSteps * kPackedStep;
  static constexpr int kSums = kRowTiles * static_cast<int>(kThreads);
  static constexpr int kWaiting = kTeams == 1 ? 2 : 0;  // else a team has two slices at most
  static constexpr size_t kSharedBytes =
      (kTeams * (kTeamInputs + kTeamPacked) + kWaiting * kSums) * sizeof(Vector4) +
      kTeams * kStages * sizeof(uint64_t);
  static_assert(kTeams == 1 || kTeams * 2 == kMaxSlices);
  static_assert(kTeams * (kTeamInputs + kTeamPacked) >= kSums);
  static_assert(kSharedBytes <= (kTeams == 1 ? 227 : 163) << 10, "what sm_90 and sm_80 have");
};

// Which slices a team sums, and where they begin.
template <typename Shape>
struct TeamSlices {
  int32_t num_teams;  // that have some
  int32_t team;
  int32_t first;
  int32_t end;
  int32_t first_step;

  OUTRIDER_DEVICE explicit TeamSlices(const Matrix& matrix)
      : num_teams(matrix.num_slices < Shape::kTeams ? matrix.num_slices : Shape::kTeams),
        team(Shape::kTeams == 1 ? 0 : static_cast<int32_t>(uniform_warp_id()) / Shape::kTiles) {
    const int32_t each = matrix.num_slices < Shape::kTeams ? 1 : matrix.num_slices / Shape::kTeams;
    first = team * each;
    end = team < num_teams ? first + each : first;
    first_step =
        team > 0 && team < num_teams ? whole_tiles(matrix.slice_ends[first - 1], kTileInner) : 0;
  }
};

struct WideJob {
  ProductJob job;
  TileMap weights;  // a unit is a step
  TileMap inputs;   // kInputUnits are a step
};
inline constexpr int32_t kInputUnits = 4;

// The copies of a team: stage after stage of each slice. The last of a slice may bring more than
// the slice has, which nobody looks at.
template <typename Shape>
struct WideCopies {
  const WideJob& wide;
  const Matrix& matrix;
  int32_t first_tile;
  int32_t first_group;
  int32_t warp;  // of the team
  Vector4* inputs;
  Vector4* weights;
  uint64_t* arrivals;
  int32_t slice;  // the next one
  int32_t end_slice;
  int32_t left = 0;  // steps of the one before
  int32_t begin;     // where the next one begins

  OUTRIDER_DEVICE WideCopies(const WideJob& job,
                             const TeamSlices<Shape>& slices,
                             int32_t tile,
                             int32_t group)
      : wide(job),
        matrix(job.job.product.weights),
        first_tile(tile),
        first_group(group),
        warp(static_cast<int32_t>(warp_id()) % Shape::kTiles),
        slice(slices.first),
        end_slice(slices.end),
        begin(slices.first_step) {
    Vector4* const all_weights = shared_memory<Vector4>() + Shape::kTeams * Shape::kTeamInputs;
    inputs = shared_memory<Vector4>() + slices.team * Shape::kTeamInputs;
    weights = all_weights + slices.team * Shape::kTeamPacked;
    arrivals = reinterpret_cast<uint64_t*>(all_weights + Shape::kTeams * Shape::kTeamPacked +
                                           Shape::kWaiting * Shape::kSums) +
               slices.team * Shape::kStages;
  }

  // Where a stage's lie: of all output tiles, of all rows.
  OUTRIDER_DEVICE Vector4* weights_of(int32_t stage) const {
    return weights + stage * Shape::kTiles * Shape::kSteps * Shape::kPackedStep;
  }
  OUTRIDER_DEVICE Vector4* inputs_of(int32_t stage) const {
    return inputs + stage * Shape::kRowGroups * Shape::kSteps * Shape::kInputStep;
  }

  // Asks for the next stage, if there is one.
  OUTRIDER_DEVICE void ask(int32_t stage) {
    while (left == 0 && slice < end_slice) {
      const int32_t end = whole_tiles(matrix.slice_ends[slice++], kTileInner);
      left = end - begin;
      begin = end;
    }
    if (left > 0) {
      const int32_t step = begin - left;
      if (warp == 0) expect_bytes(arrivals + stage, kStageBytes);
      bring(weights_of(stage), wide.weights, step, first_tile, stage);
      bring(inputs_of(stage), wide.inputs, step * kInputUnits, first_group, stage);
      left -= left < Shape::kSteps ? left : Shape::kSteps;
    }
    end_copies_by_warp();
  }

 private:
  static constexpr uint32_t kStageBytes =
      Shape::kSteps * (Shape::kTiles * Shape::kPackedStep + Shape::kRowGroups * Shape::kInputStep) *
      sizeof(Vector4);

  // From sm_90 on one warp's, else all bring some of it.
  OUTRIDER_DEVICE void bring(Vector4* to,
                             const TileMap& from,
                             int32_t unit,
                             int32_t tile,
                             [[maybe_unused]] int32_t stage) const {
#if __CUDA_ARCH__ >= 900
    if (warp == 0) copy_tiles(to, from, unit, tile, arrivals + stage);
#else
    const PackedTiles& tiles = from.tiles;
    const uint32_t unit_words = tiles.unit_bytes / sizeof(Vector4);
    const uint32_t part_words = tiles.part_units * unit_words;  // of a tile
    const uint32_t first = static_cast<uint32_t>(warp) * 32 + lane_id();
    for (uint32_t i = first; i < tiles.part_tiles * part_words; i += Shape::kTeamThreads) {
      const uint32_t of_tile = static_cast<uint32_t>(tile) + i / part_words;
      const uint32_t of_unit = static_cast<uint32_t>(unit) + i % part_words / unit_words;
      const bool is_there = of_tile < tiles.num_tiles && of_unit < tiles.num_units;
      const size_t at = (size_t{of_tile} * tiles.num_units + of_unit) * unit_words + i % unit_words;
      const auto* const data = static_cast<const Vector4*>(tiles.data);
      copy_async_16(to + i, is_there ? data + at : data, is_there);
    }
#endif
  }
};

// The sums of one warp, [row tile][4], and the partial folds that wait for their neighbour: of one
// slice in registers, of two and of four in shared memory.
template <typename Shape>
struct WideSums {
  float now[Shape::kRowTiles][4];
  float of_one[Shape::kRowTiles][4];
  Vector4* in_shared;  // [kWaiting][kRowTiles], every kThreads-th of this thread

  OUTRIDER_DEVICE void clear() {
    each([](float& sum, float&) { sum = 0.0f; });
  }
  // The slice that `now` holds is done, the team's `place`-th. After the last one `now` is their
  // fold.
  OUTRIDER_DEVICE void end_slice(const ProductArgs& product,
                                 int32_t tile,
                                 int32_t slice,
                                 int32_t place) {
    const auto out = tile * kTileOutputs + static_cast<int32_t>(lane_id()) / 4;
    const LeafTerms terms[2] = {leaf_terms(product, out), leaf_terms(product, out + 8)};
    OUTRIDER_UNROLL
    for (auto& of_tile : now) {
      OUTRIDER_UNROLL
      for (int i = 0; i < 4; ++i) of_tile[i] = make_leaf(terms[i / 2], slice, of_tile[i]);
    }
    if ((place & 1) == 0) {
      each([](float& sum, float& earlier) { earlier = sum; });
    } else {
      each([](float& sum, float& earlier) { sum = exact_add(earlier, sum); });
    }
    if constexpr (Shape::kWaiting > 0) {
      if ((place & 3) == 1) {
        move_to(in_shared);
      } else if ((place & 3) == 3) {
        fold_from(in_shared);
      }
      if ((place & 7) == 3) {
        move_to(in_shared + Shape::kSums);
      } else if ((place & 7) == 7) {
        fold_from(in_shared + Shape::kSums);
      }
    }
  }
  OUTRIDER_DEVICE void move_to(Vector4* shared) const {
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      shared[r * static_cast<int>(Shape::kThreads)] = {
          bits_of(now[r][0]), bits_of(now[r][1]), bits_of(now[r][2]), bits_of(now[r][3])};
    }
  }

 private:
  OUTRIDER_DEVICE void fold_from(const Vector4* shared) {
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const Vector4 earlier = shared[r * static_cast<int>(Shape::kThreads)];
      now[r][0] = exact_add(float_of(earlier.x), now[r][0]);
      now[r][1] = exact_add(float_of(earlier.y), now[r][1]);
      now[r][2] = exact_add(float_of(earlier.z), now[r][2]);
      now[r][3] = exact_add(float_of(earlier.w), now[r][3]);
    }
  }
  template <typename Change>
  OUTRIDER_DEVICE void each(const Change& change) {
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      OUTRIDER_UNROLL
      for (int i = 0; i < 4; ++i) change(now[r][i], of_one[r][i]);
    }
  }
};

#if __CUDA_ARCH__ >= 900
// The compiler touches no sums beyond this point, in either direction: else it lets every matrix
// instruction end before the next.
template <int kRowTiles>
OUTRIDER_DEVICE void hold_sums(float (&sums)[kRowTiles][4]) {
  OUTRIDER_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    asm volatile("" : "+f"(sums[r][0]), "+f"(sums[r][1]), "+f"(sums[r][2]), "+f"(sums[r][3]));
  }
}
// The compiler leaves these registers alone up to this point: matrix instructions still read them.
OUTRIDER_DEVICE void hold_weights(const Vector4& weights) {
  asm volatile("" ::"r"(weights.x), "r"(weights.y), "r"(weights.z), "r"(weights.w));
}
#endif

// Products of kCount steps from `step` of a stage on. weights: of this warp's tile, inputs: of the
// stage. meanwhile(): while four warps multiply.
template <typename Shape, int kCount, typename Meanwhile>
OUTRIDER_DEVICE void multiply_steps(float (&sums)[Shape::kRowTiles][4],
                                    const Vector4* weights,
                                    const Vector4* inputs,
                                    int32_t step,
                                    const Meanwhile& meanwhile) {
#if __CUDA_ARCH__ >= 900
  using Half = typename Shape::Weights::Half;
  const uint32_t place = weight_place(lane_id() / 4, lane_id() % 4);
  Vector4 wide[kCount];
  OUTRIDER_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const auto* const tile =
        reinterpret_cast<const Half*>(weights + (step + i) * Shape::kPackedStep);
    wide[i] = Shape::Weights::widened(tile[place], tile[place ^ 4]);
  }
  hold_sums(sums);
  begin_group_products();
  OUTRIDER_UNROLL
  for (int i = 0; i < kCount; ++i) {
    OUTRIDER_UNROLL
    for (int group = 0; group < Shape::kRowGroups; ++group) {
      multiply_by_group<Shape::kInputs == Type::kBF16>(
          sums + group * 8,
          wide[i],
          group_rows(inputs + (group * Shape::kSteps + step + i) * Shape::kInputStep));
    }
  }
  end_group_products();
  meanwhile();
  wait_group_products();
  hold_sums(sums);
  OUTRIDER_UNROLL
  for (int i = 0; i < kCount; ++i) hold_weights(wide[i]);
#else
  meanwhile();
  OUTRIDER_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const auto* const packed =
        reinterpret_cast<const typename Shape::Packed*>(weights + (step + i) * Shape::kPackedStep);
    const Vector4 wide = Shape::Weights::widened(packed[weight_slot(lane_id())]);
    OUTRIDER_UNROLL
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const auto* const rows = reinterpret_cast<const Vector2*>(
          inputs + (r / 8 * Shape::kSteps + step + i) * Shape::kInputStep);
      multiply<Shape::kInputs>(sums[r], wide, rows[r % 8 * 32 + activation_slot(lane_id())]);
    }
  }
#endif
}

// The sums of all teams, met in shared memory; each team finishes every kTeams-th row tile.
template <typename Shape>
OUTRIDER_DEVICE void finish_rows(const ProductJob& job,
                                 const TeamSlices<Shape>& slices,
                                 const WideSums<Shape>& sums,
                                 int32_t tile,
                                 int32_t first_row,
                                 int32_t num_rows) {
  sync_block();  // all stages are read
  auto* const met = shared_memory<Vector4>();
  sums.move_to(met + thread_id());
  sync_block();
  if (tile >= whole_tiles(job.product.weights.n_out, kTileOutputs)) return;
  const auto lane = static_cast<int32_t>(lane_id());
  const Vector4* const of_first = met + thread_id() % Shape::kTeamThreads;
  OUTRIDER_ROLLED
  for (int32_t r = slices.team; r < Shape::kRowTiles; r += Shape::kTeams) {
    float leaves[4][kMaxSlices] = {};
    OUTRIDER_UNROLL
    for (int32_t team = 0; team < Shape::kTeams; ++team) {
      const Vector4 v = of_first[static_cast<uint32_t>(r) * Shape::kThreads +
                                 static_cast<uint32_t>(team) * Shape::kTeamThreads];
      leaves[0][team] = float_of(v.x);
      leaves[1][team] = float_of(v.y);
      leaves[2][team] = float_of(v.z);
      leaves[3][team] = float_of(v.w);
    }
    OUTRIDER_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int32_t row = first_row + r * kTileRows + lane % 4 * 2 + i;
      if (row >= num_rows) continue;
      finish_pair(job,
                  tile * kTileOutputs + lane / 4,
                  row,
                  fold_leaves(leaves[i], slices.num_teams),
                  fold_leaves(leaves[2 + i], slices.num_teams));
    }
  }
}

template <typename Shape>
OUTRIDER_KERNEL(Shape::kThreads, 1)
void wide_product(OUTRIDER_ARGUMENT WideJob wide) {
  const ProductJob& job = wide.job;
  const ProductArgs& product = job.product;
  const Matrix& matrix = product.weights;
  wait_for_predecessor();
  let_successor_begin();
  const int32_t num_rows = rows_of(product);
  const auto first_group = static_cast<int32_t>(block_id().x) * Shape::kRowGroups;
  const auto first_tile = static_cast<int32_t>(block_id().y) * Shape::kTiles;
  if (first_group * kGroupRows >= num_rows) return;

  const TeamSlices<Shape> slices(matrix);
  WideCopies<Shape> copies(wide, slices, first_tile, first_group);
  WideSums<Shape> sums;
  sums.in_shared = shared_memory<Vector4>() +
                   Shape::kTeams * (Shape::kTeamInputs + Shape::kTeamPacked) + thread_id();
  if (copies.warp == 0) init_arrivals(copies.arrivals, Shape::kStages);
  sync_block();
  for (int32_t stage = 0; stage + 1 < Shape::kStages; ++stage) copies.ask(stage);

  const int32_t tile = first_tile + copies.warp;
  int32_t stage = 0;
  uint32_t round = 0;
  int32_t step = slices.first_step;
  OUTRIDER_ROLLED
  for (int32_t slice = slices.first; slice < slices.end; ++slice) {
    const int32_t slice_end = whole_tiles(matrix.slice_ends[slice], kTileInner);
    sums.clear();
    OUTRIDER_ROLLED
    for (; step < slice_end; step += Shape::kSteps) {
      wait_copies_by_warp<Shape::kStages - 2>(copies.arrivals + stage, round);
      // All of the team have read the stage before, and below sm_90 have brought this one.
      sync_group(Shape::kTeamThreads);
      const Vector4* const weights =
          copies.weights_of(stage) + copies.warp * Shape::kSteps * Shape::kPackedStep;
      const Vector4* const inputs = copies.inputs_of(stage);
      const auto ask = [&] { copies.ask(stage == 0 ? Shape::kStages - 1 : stage - 1); };
      if (step + Shape::kSteps <= slice_end) {
        multiply_steps<Shape, Shape::kSteps>(sums.now, weights, inputs, 0, ask);
      } else {
        ask();
        OUTRIDER_ROLLED
        for (int32_t i = 0; i < slice_end - step; ++i) {
          multiply_steps<Shape, 1>(sums.now, weights, inputs, i, [] {});
        }
      }
      if (++stage == Shape::kStages) {
        stage = 0;
        ++round;
      }
    }
    step = slice_end;
    sums.end_slice(product, tile, slice, slice - slices.first);
  }
  finish_rows(job, slices, sums, tile, first_group * kGroupRows, num_rows);
}

template <typename Shape>
Grid wide_grid(const ProductArgs& product) {
  return {static_cast<uint32_t>(whole_tiles(product.max_rows, Shape::kRowGroups * kGroupRows)),
          static_cast<uint32_t>(whole_tiles(product.weights.n_out, Shape::kTiles * kTileOutputs))};
}

template <typename Shape>
void launch_wide(Stream& stream, const ProductJob& job) {
  const Matrix& matrix = job.product.weights;
  const auto num_steps = static_cast<uint32_t>(whole_tiles(matrix.n_in, kTileInner));
  const auto num_tiles = static_cast<uint32_t>(whole_tiles(matrix.n_out, kTileOutputs));
  const auto num_groups = static_cast<uint32_t>(whole_tiles(job.product.max_rows, kGroupRows));
  const WideJob wide = {
      .job = job,
      .weights = make_tile_map(stream,
                               {.data = matrix.data,
                                .unit_bytes = Shape::kPackedStep * sizeof(Vector4),
                                .num_units = num_steps,
                                .num_tiles = num_tiles,
                                .part_units = Shape::kSteps,
                                .part_tiles = Shape::kTiles}),
      .inputs = make_tile_map(stream,
                              {.data = job.product.in.data,
                               .unit_bytes = Shape::kInputStep * sizeof(Vector4) / kInputUnits,
                               .num_units = num_steps * kInputUnits,
                               .num_tiles = num_groups,
                               .part_units = Shape::kSteps * kInputUnits,
                               .part_tiles = Shape::kRowGroups})};
  launch(stream,
         wide_product<Shape>,
         {.grid = wide_grid<Shape>(job.product),
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes,
          .overlaps = true},
         wide);
}

// About one block per processor of a large device is wanted (128 of an H200's 132: 4,096 outputs
// x 512 rows).
inline constexpr uint32_t kWantedWideBlocks = 128;

template <Type kWeights>
void run_wide(Stream& stream, const ProductJob& job) {
  using Broad = Wide<kWeights, 2, 2, 1>;
  const Grid grid = wide_grid<Broad>(job.product);
  const bool has_room = block_shared_bytes(stream) >= Broad::kSharedBytes;  // not on sm_80
  if (has_room && grid.x * grid.y >= kWantedWideBlocks) return launch_wide<Broad>(stream, job);
  launch_wide<Wide<kWeights, 1, 1, 4>>(stream, job);
}

}  // namespace outrider::gpu
