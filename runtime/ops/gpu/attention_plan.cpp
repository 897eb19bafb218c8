// See attention_plan.h.
#include "runtime/ops/gpu/attention_plan.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "runtime/base/error.h"

namespace outrider::gpu {
namespace {

constexpr int32_t kTile = 16;  // (row, query head) pairs of a tile of the matrix instruction
// Pairs of an item: 17 rows of 4 query heads each fit. Wide heads keep fewer at a time.
constexpr int32_t kItemPairs = 80;
constexpr int32_t kItemPairsOfWideHeads = 48;
constexpr int32_t kWideHeadDim = 128;

// Rows that fill whole tiles.
int32_t whole_tile_rows(int32_t group) { return kTile / std::gcd(kTile, group); }

// The first position of all rows of the sequence that row `first` begins.
int32_t first_new_position(const AttentionRows& rows, size_t first) {
  int32_t least = rows.positions[first];
  for (size_t row = first;
       row < rows.positions.size() && rows.sequence_of_row[row] == rows.sequence_of_row[first];
       ++row) {
    least = std::min(least, rows.positions[row]);
  }
  return least;
}

size_t end_of_run(const AttentionRows& rows, size_t first) {
  size_t end = first + 1;
  while (end < rows.positions.size() && rows.sequence_of_row[end] == rows.sequence_of_row[first] &&
         rows.positions[end] > rows.positions[end - 1]) {
    ++end;
  }
  return end;
}

// Rows of each item but the last of a run.
int32_t even_piece(int32_t num_rows, int32_t group, int32_t rows_per_item) {
  const int32_t pieces = (num_rows + rows_per_item - 1) / rows_per_item;
  const int32_t piece = (num_rows + pieces - 1) / pieces;
  const int32_t unit = whole_tile_rows(group);
  const int32_t rounded = (piece + unit - 1) / unit * unit;
  return rounded <= rows_per_item ? rounded : piece;
}

}  // namespace

int32_t rows_per_attention_item(int32_t group, int32_t head_dim) {
  const int32_t pairs = head_dim > kWideHeadDim ? kItemPairsOfWideHeads : kItemPairs;
  return std::clamp(pairs / group, 1, kMaxItemRows);
}

int32_t rows_of_attention_tile(int32_t group) { return std::clamp(kTile / group, 1, kMaxItemRows); }

AttentionPlan plan_attention(const AttentionRows& rows,
                             int32_t group,
                             int32_t rows_per_item,
                             std::span<AttentionItem> items) {
  OUTRIDER_CHECK(rows.positions.size() == rows.sequence_of_row.size());
  OUTRIDER_CHECK(group > 0 && rows_per_item > 0 && rows_per_item <= kMaxItemRows);
  AttentionPlan plan;
  int32_t first_new = 0;
  for (size_t first = 0; first < rows.positions.size();) {
    const size_t end = end_of_run(rows, first);
    if (first == 0 || rows.sequence_of_row[first - 1] != rows.sequence_of_row[first]) {
      first_new = first_new_position(rows, first);
    }
    const int32_t piece = even_piece(static_cast<int32_t>(end - first), group, rows_per_item);
    while (first < end) {
      if (static_cast<size_t>(plan.num_items) == items.size()) {
        throw Error("the step has more than " + std::to_string(items.size()) +
                    " pieces of attention");
      }
      const size_t item_end = std::min(end, first + static_cast<size_t>(piece));
      const int32_t num_splits = rows.positions[item_end - 1] / kSplitPositions + 1;
      items[static_cast<size_t>(plan.num_items++)] = {
          .first_row = static_cast<int32_t>(first),
          .num_rows = static_cast<int32_t>(item_end - first),
          .sequence = rows.sequence_of_row[first],
          .num_splits = num_splits,
          .first_new = first_new};
      plan.max_splits = std::max(plan.max_splits, num_splits);
      first = item_end;
    }
  }
  return plan;
}

AttentionBucket attention_bucket(const AttentionPlan& plan, int32_t max_rows) {
  const auto rounded = [](int32_t n) {
    return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(n, 1))));
  };
  return {.max_items = std::min(rounded(plan.num_items), std::max(max_rows, 1)),
          .max_splits = rounded(plan.max_splits)};
}

}  // namespace outrider::gpu
