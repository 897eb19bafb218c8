// One row of logits of one shard as sampling sees it: the raw values, a short sorted list of
// changed ones (bias, masks, penalties), and the temperature. The raw row is never copied; a tile
// is, when something in it changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "scheduler/row_kernels.h"

namespace outrider {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct RowView {
  const float* logits = nullptr;  // [size], raw
  int32_t size = 0;
  int32_t first_token = 0;              // token id of logits[0]
  std::span<const int32_t> edit_index;  // ascending indices into logits
  std::span<const float> edit_value;    // their processed values
  float inverse_temperature = 1.0f;

  // The processed value divided by the temperature. O(log edits).
  float scaled(int32_t index) const {
    const auto found = std::lower_bound(edit_index.begin(), edit_index.end(), index);
    const bool edited = found != edit_index.end() && *found == index;
    const float value =
        edited ? edit_value[static_cast<size_t>(found - edit_index.begin())] : logits[index];
    return exact_mul(value, inverse_temperature);
  }
};

// Calls visit(begin, count, values) for every tile; values are processed but not yet divided by the
// temperature.
template <typename Visit>
void for_each_tile(const RowView& row, Visit&& visit) {
  alignas(64) float patched[kTileTokens];
  size_t next = 0;
  for (int32_t begin = 0; begin < row.size; begin += kTileTokens) {
    const int32_t count = std::min(kTileTokens, row.size - begin);
    const float* values = row.logits + begin;
    if (next < row.edit_index.size() && row.edit_index[next] < begin + count) {
      std::copy_n(values, count, patched);
      for (; next < row.edit_index.size() && row.edit_index[next] < begin + count; ++next) {
        patched[row.edit_index[next] - begin] = row.edit_value[next];
      }
      values = patched;
    }
    visit(begin, count, values);
  }
}

}  // namespace outrider
