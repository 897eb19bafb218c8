// A shard's best tokens of one row, found in one quick look at all of it and a closer one at the
// few stretches that may hold one of them. Of rows in host memory.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "scheduler/rows/row_view.h"

namespace outrider {

// The best keys of this shard (scaled value, token), best first, as many as there is memory for;
// fewer when the shard is smaller, and without those of values that lie more than `within` below
// its best. A bad row may have any keys.
struct TopScan {
  std::span<uint64_t> keys;  // what is filled of `memory`
  bool bad = false;          // NaN or infinity among the raw logits of this shard
};
TopScan scan_top(const RowView& row,
                 std::span<uint64_t> memory,
                 float within = std::numeric_limits<float>::infinity());

}  // namespace outrider
