// Products of experts with 16-bit activations: product_skinny.h by tiles of rows. Prompts too,
// whose rows spread over the experts.
#pragma once

#include "runtime/ops/cuda/product/product_experts.h"
#include "runtime/ops/cuda/product/product_skinny.h"

namespace outrider::gpu {

template <typename Shape>
OUTRIDER_KERNEL(Shape::kThreads, Shape::kBlocksPerProcessor)
void skinny_experts(ExpertJob job) {
  const Matrix& weights = job.product.weights;
  const SkinnyPlace place = skinny_place<Shape>(weights);
  if (!job.is_down) wait_for_predecessor();  // who may have made the tiles
  const int32_t num_tiles = num_expert_tiles(job);
  const auto first = static_cast<int32_t>(block_id().y);
  uint64_t* const arrivals = make_arrivals<Shape>();
  RingPlace ring;
  OUTRIDER_ROLLED
  for (int32_t tile = first; tile < num_tiles; tile += static_cast<int32_t>(num_blocks().y)) {
    if (tile != first) {
      sync_block();  // the sums in place of the rings are read
      let_copies_overwrite();
    }
    const TileOfRows rows(job, tile);
    SkinnyWarp<Shape> warp(job.product,
                           rows.first_weight_row() / kTileOutputs + place.first_tile,
                           place.begin,
                           place.end,
                           arrivals,
                           ring);
    warp.begin_weights();
    wait_for_predecessor();
    let_successor_begin();
    warp.gather_inputs(job.product, place.begin, rows);
    warp.run();
    ring = warp.place;
    finish_sums(rows, warp, place.first_tile, weights.num_slices);
  }
  wait_for_predecessor();  // also without a tile: who comes next waits for no other
}

template <typename Shape>
void launch_skinny_experts(Stream& stream, const ExpertJob& job) {
  const Matrix& weights = job.product.weights;
  const int32_t groups = kMaxSlices / weights.num_slices;
  const int32_t out_tiles = whole_tiles(weights.n_out, kTileOutputs);
  const auto blocks = static_cast<uint32_t>(whole_tiles(out_tiles, groups * Shape::kTiles));
  launch(stream,
         skinny_experts<Shape>,
         {.grid = {blocks, tiles_at_once(job, blocks)},
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes,
          .overlaps = true},
         job);
}

template <Type kWeights, Type kInputs>
void run_skinny_experts(Stream& stream, const ExpertJob& job) {
  if (job.rows.tile_rows == kTileRows) {
    launch_skinny_experts<Skinny<kWeights, kInputs, 1, 1>>(stream, job);
  } else {
    launch_skinny_experts<Skinny<kWeights, kInputs, 1, 4>>(stream, job);
  }
}

}  // namespace outrider::gpu
