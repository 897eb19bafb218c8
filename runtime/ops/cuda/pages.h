// Where a position's query, key and value lie: aside, and in the paged memory.
#pragma once

#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

// Element 0 of head `kv_head` of the row's own position, in elements from the layer's beginning.
OUTRIDER_DEVICE size_t slot_of_row(const KvView& kv,
                                   const StepView& step,
                                   int32_t row,
                                   int32_t kv_head) {
  const int32_t position = step.positions[row];
  const int32_t sequence = step.sequence_of_row[row];
  const int32_t block =
      step.block_tables[static_cast<size_t>(sequence) * static_cast<size_t>(step.table_stride) +
                        static_cast<size_t>(position / kv.block_size)];
  const size_t heads_before = static_cast<size_t>(block) * static_cast<size_t>(kv.n_kv_heads) +
                              static_cast<size_t>(kv_head);
  const size_t slots_before = heads_before * static_cast<size_t>(kv.block_size) +
                              static_cast<size_t>(position % kv.block_size);
  return slots_before * static_cast<size_t>(kv.head_dim);
}

struct HeadPlace {
  void* data;
  size_t first;  // element
};

// Of a row's head, in the order queries, keys, values.
OUTRIDER_DEVICE HeadPlace place_of_head(const QkvArgs& to,
                                        const StepView& step,
                                        int32_t row,
                                        int32_t head) {
  if (head < to.n_heads) {
    const size_t heads_before =
        static_cast<size_t>(row) * static_cast<size_t>(to.n_heads) + static_cast<size_t>(head);
    return {to.queries, heads_before * static_cast<size_t>(to.kv.head_dim)};
  }
  const bool is_key = head < to.n_heads + to.kv.n_kv_heads;
  const int32_t kv_head = head - to.n_heads - (is_key ? 0 : to.kv.n_kv_heads);
  return {is_key ? to.kv.keys : to.kv.values, slot_of_row(to.kv, step, row, kv_head)};
}

}  // namespace outrider::gpu
