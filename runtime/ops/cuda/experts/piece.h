// What the kernels of experts share: how many rows of a piece there are, and the steps of routing.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/experts.h"

namespace outrider::gpu {

OUTRIDER_DEVICE int32_t rows_of_piece(const RoutedRows& rows, const StepView& step) {
  const int32_t left = step.counts->num_rows - rows.first_row;
  if (left <= 0) return 0;
  return left < rows.max_rows ? left : rows.max_rows;
}

// One after the other: route_rows().
void make_router_logits(Stream& stream, const RouteArgs& args);  // router_logits.cu
void choose_experts(Stream& stream, const RouteArgs& args);      // choose_experts.cu
void tile_pairs(Stream& stream, const RouteArgs& args);          // tile_pairs.cu

}  // namespace outrider::gpu
