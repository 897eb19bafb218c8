// A shard's best noisy token of one row: a sample of the softmax by the Gumbel-max rule, found
// without looking at most of the row. Of rows in host memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/rows/row_view.h"

namespace outrider {

// The greatest processed value of each stretch of a row, not yet divided by the temperature.
using RowPeaks = std::vector<float>;

// All of them; with the row's edits and mask, and under its ceiling. False when there is NaN or
// infinity among the raw logits.
bool find_peaks(const RowView& row, RowPeaks& peaks);

// The highest key of scaled + Gumbel noise over tokens with scaled >= cut: needs neither normaliser
// nor prefix scan. Masked tokens take part with -infinity, so that a wholly masked row still names
// its lowest token; an empty one has key_to_beat, a key of tokens that are not in the row: the
// answer is the higher of both, the sooner found the higher it is. peaks: of this row, or of it
// with less masked.
uint64_t draw_key(const RowView& row,
                  std::span<const float> peaks,
                  float cut,
                  const NoiseKey& noise,
                  uint64_t key_to_beat = 0);

// The score of one token as draw_key sees it.
uint64_t noisy_key(double log_weight, int32_t token, const NoiseKey& noise);

}  // namespace outrider
