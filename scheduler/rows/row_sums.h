// What one shard says about one row: its best token and its mass (its best noisy token:
// draw_search.h, its n best: top_search.h).
// Each is a 64-bit integer that the shards combine by MAX or SUM, so the answer for the whole
// vocabulary has the same bits for any number of shards. Of rows in host memory: how HostRowScanner
// answers.
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/rows/draw_search.h"
#include "scheduler/rows/row_view.h"

namespace outrider {

struct RowScan {
  uint64_t key = 0;  // best scaled value and its token (pack_key); 0 on an empty shard
  bool bad = false;  // NaN or infinity among the raw logits of this shard
};
// peaks: filled, for draw_key() and the sums.
RowScan scan_row(const RowView& row, RowPeaks& peaks);

// Sum of fixed_weight(scaled - max) over this shard's tokens with scaled >= cut. peaks: of this
// row, or of it with less masked.
uint64_t row_mass(const RowView& row, std::span<const float> peaks, float max, float cut);

// Sum of fixed_moment(scaled - max) over the same tokens: over their mass it is the mean distance
// below max, which is the entropy less the maximum's own surprisal.
uint64_t row_moment(const RowView& row, std::span<const float> peaks, float max, float cut);

}  // namespace outrider
