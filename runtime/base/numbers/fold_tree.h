// The one binary tree in which partial sums are folded wherever the number of ranks must not change
// a bit (docs/architecture.md, Numerics): inside a product by runtime/ops, between ranks by
// runtime/comm. A part of 2^k neighbouring leaves that begins at a multiple of 2^k is a subtree, so
// it does not matter which of them were folded before they met the others.
#pragma once

#include <cstddef>

namespace outrider {

// leaves: [num_leaves, n], row-major. Neighbours are added, then neighbours of those: ((0 + 1) + (2
// + 3)) + ((4 + 5) + (6 + 7)); a leaf without a neighbour moves up alone. The sum ends in leaf 0;
// the others are overwritten.
inline void fold_in_tree(float* leaves, size_t num_leaves, size_t n) {
  for (size_t step = 1; step < num_leaves; step *= 2) {
    for (size_t left = 0; left + step < num_leaves; left += 2 * step) {
      float* to = leaves + left * n;
      const float* from = to + step * n;
      for (size_t i = 0; i < n; ++i) to[i] += from[i];
    }
  }
}

}  // namespace outrider
