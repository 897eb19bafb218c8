// The sums of a position's slices in the tree of runtime/base/numbers/fold_tree.h, in registers.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/tiles.h"

namespace outrider::gpu {

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

}  // namespace outrider::gpu
