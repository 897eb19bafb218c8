// Attention over one chunk of positions as two products of rounded numbers (RoundedProducts): keys
// and values as they lie in memory, in bf16 or in integers, which are exact in bf16; queries and
// softmax weights rounded to bf16. Of integers the keys' scales multiply the scores and the values'
// scales the weights, these before they are rounded. Invariant:
// a value that a query does not see does not touch it, and else adds one link to its chain, so bits
// are the same for every tile and on every ISA.
#pragma once

#include "runtime/ops/cpu/kernels.h"

namespace outrider::ops::cpu {

inline constexpr int64_t kRoundedDims = 32;  // numbers of a key that are packed at a time
inline constexpr bool can_round_attention(int64_t head_dim) {
  return head_dim % kRoundedDims == 0 && head_dim <= kInnerChunk;
}

// Floats of AttentionTile::scratch.
int64_t rounded_attention_scratch(int64_t head_dim);

// Queries are rows of kInnerChunk elements as products.round_row writes them.
void rounded_attention_tile(const KernelTable& table,
                            const RoundedProducts& products,
                            const AttentionTile& tile);

}  // namespace outrider::ops::cpu
