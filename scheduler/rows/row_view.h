// One row of logits of one shard as sampling sees it: the raw values, a short sorted list of
// changed ones (bias, penalties, stop tokens), the token mask's bits, the ceiling that typical_p
// sets, and the temperature. A description only: the raw row stays where it is, on a device or
// here. Of one that is here no more than a tile is ever copied, when something in it changed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include "scheduler/rows/row_kernels.h"

namespace outrider {

inline constexpr float kNoCeiling = std::numeric_limits<float>::infinity();

// Where a row begins, in the memory of the scanner that reads it (row_scanner.h): the host's, or a
// device's. So only a scanner may look behind it.
class LogitsAddress {
 public:
  LogitsAddress(const float* first = nullptr) : first_(first) {}  // NOLINT: as forward() gives it
  LogitsAddress operator+(int64_t num_logits) const { return first_ + num_logits; }
  const float* behind() const { return first_; }

 private:
  const float* first_;
};

struct RowView {
  LogitsAddress logits;  // [size], raw
  int32_t size = 0;
  int32_t first_token = 0;              // token id of logits[0]
  std::span<const int32_t> edit_index;  // ascending indices into logits
  std::span<const float> edit_value;    // their processed values
  std::span<const uint64_t> allowed;    // one bit per logit, or empty: all are allowed
  float inverse_temperature = 1.0f;
  float ceiling = kNoCeiling;  // scaled values above it are masked

  // The processed value, divided by the temperature, of a token whose raw logit is given. O(log
  // edits).
  float scaled(int32_t index, float raw) const {
    if (!is_allowed(index)) return kMasked;
    const auto found = std::lower_bound(edit_index.begin(), edit_index.end(), index);
    const bool edited = found != edit_index.end() && *found == index;
    const float value = edited ? edit_value[static_cast<size_t>(found - edit_index.begin())] : raw;
    const float result = exact_mul(value, inverse_temperature);
    return result > ceiling ? kMasked : result;
  }

  bool is_allowed(int32_t index) const {
    if (allowed.empty()) return true;
    const auto at = static_cast<uint32_t>(index);
    return (allowed[at / 64] >> (at % 64) & 1) != 0;
  }

  // Whether the mask or the ceiling touches the tile, whose values are edited already.
  bool is_cut(int32_t begin, int32_t count, const float* values) const {
    for (int32_t i = 0; !allowed.empty() && i < count; i += 64) {
      if (forbidden_in_word(begin + i, count - i) != 0) return true;
    }
    return ceiling < kNoCeiling &&
           exact_mul(row_kernels().range(values, count).max, inverse_temperature) > ceiling;
  }

  void cut_tile(int32_t begin, int32_t count, float* values) const {
    for (int32_t i = 0; !allowed.empty() && i < count; i += 64) {
      for (uint64_t left = forbidden_in_word(begin + i, count - i); left != 0; left &= left - 1) {
        values[i + std::countr_zero(left)] = kMasked;
      }
    }
    for (int32_t i = 0; ceiling < kNoCeiling && i < count; ++i) {
      values[i] = exact_mul(values[i], inverse_temperature) > ceiling ? kMasked : values[i];
    }
  }

 private:
  // Of up to `count` tokens from `first`, a multiple of 64.
  uint64_t forbidden_in_word(int32_t first, int32_t count) const {
    const uint64_t forbidden = ~allowed[static_cast<size_t>(first) / 64];
    return count >= 64 ? forbidden : forbidden & ((uint64_t{1} << count) - 1);
  }
};

// Of a row in host memory: its processed values from `begin`, a multiple of 64, not yet divided by
// the temperature. Where they lie, or a copy in patched[count] when something in them changed.
inline const float* processed_values(const RowView& row,
                                     int32_t begin,
                                     int32_t count,
                                     float* patched) {
  const float* values = row.logits.behind() + begin;
  auto next = std::lower_bound(row.edit_index.begin(), row.edit_index.end(), begin);
  if (next != row.edit_index.end() && *next < begin + count) {
    std::copy_n(values, count, patched);
    for (; next != row.edit_index.end() && *next < begin + count; ++next)
      patched[*next - begin] = row.edit_value[static_cast<size_t>(next - row.edit_index.begin())];
    values = patched;
  }
  if (row.is_cut(begin, count, values)) {
    if (values != patched) std::copy_n(values, count, patched);
    row.cut_tile(begin, count, patched);
    values = patched;
  }
  return values;
}

// Calls visit(begin, count, values) for every tile, with processed_values().
template <typename Visit>
void for_each_tile(const RowView& row, Visit&& visit) {
  alignas(64) float patched[kTileTokens];
  for (int32_t begin = 0; begin < row.size; begin += kTileTokens) {
    const int32_t count = std::min(kTileTokens, row.size - begin);
    visit(begin, count, processed_values(row, begin, count, patched));
  }
}

}  // namespace outrider
