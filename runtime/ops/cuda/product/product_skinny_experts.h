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
  const auto turn = static_cast<int32_t>(block_id().x);
  SkinnyWarp<Shape> warp(weights);
  if (!job.is_down) wait_for_predecessor();  // who may have made the tiles
  const int32_t num_tiles = num_expert_tiles(job);
  OUTRIDER_ROLLED
  for (auto tile = static_cast<int32_t>(block_id().y); tile < num_tiles;
       tile += static_cast<int32_t>(num_blocks().y)) {
    const TileOfRows rows(job, tile);
    warp.begin_weights({turn, 1, turn + 1}, rows.first_weight_row() / kTileOutputs);
    wait_for_predecessor();
    let_successor_begin();
    warp.gather_inputs(job.product, rows);
    warp.run();
    finish_sums(rows, warp, warp.tile_of(turn), weights.num_slices);
  }
  wait_for_predecessor();  // also without a tile: who comes next waits for no other
}

template <typename Shape>
void launch_skinny_experts(Stream& stream, const ExpertJob& job) {
  const Matrix& weights = job.product.weights;
  const auto blocks = static_cast<uint32_t>(num_turns<Shape>(weights));
  launch(stream,
         skinny_experts<Shape>,
         {.grid = {blocks, tiles_at_once(job, blocks)},
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes,
          .overlaps = true},
         job);
}

template <Type kWeights>
void run_skinny_experts(Stream& stream, const ExpertJob& job) {
  if (job.rows.tile_rows == kTileRows) {
    launch_skinny_experts<Skinny<kWeights, 1, 1>>(stream, job);
  } else {
    launch_skinny_experts<Skinny<kWeights, 1, 4>>(stream, job);
  }
}

}  // namespace outrider::gpu
