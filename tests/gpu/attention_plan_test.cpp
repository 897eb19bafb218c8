// How a step's attention is cut into items: every row once, in order, and within what a launch has.
#include "runtime/ops/gpu/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "runtime/base/error.h"

namespace outrider::gpu {
namespace {

struct Rows {
  std::vector<int32_t> positions;
  std::vector<int32_t> sequences;
  void add(int32_t sequence, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      positions.push_back(first + i);
      sequences.push_back(sequence);
    }
  }
};

std::vector<int32_t> sizes_of(int32_t num_rows, int32_t group, int32_t head_dim) {
  Rows rows;
  rows.add(0, 0, num_rows);
  std::vector<AttentionItem> items(rows.positions.size());
  const AttentionPlan plan = plan_attention(
      {rows.positions, rows.sequences}, group, rows_per_attention_item(group, head_dim), items);
  std::vector<int32_t> sizes;
  for (int32_t i = 0; i < plan.num_items; ++i) {
    sizes.push_back(items[static_cast<size_t>(i)].num_rows);
  }
  return sizes;
}

TEST(AttentionPlan, EveryRowIsInOneItemOfItsSequence) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Rows rows;
    const auto num_sequences = static_cast<int32_t>(random() % 6);
    for (int32_t s = 0; s < num_sequences; ++s) {
      rows.add(s, static_cast<int32_t>(random() % 1000), static_cast<int32_t>(random() % 90));
    }
    const auto group = static_cast<int32_t>(1 + random() % 9);
    const int32_t rows_per_item = rows_per_attention_item(group, 128);
    std::vector<AttentionItem> items(rows.positions.size());
    const AttentionPlan plan =
        plan_attention({rows.positions, rows.sequences}, group, rows_per_item, items);
    int32_t next = 0;
    int32_t max_splits = 0;
    for (int32_t i = 0; i < plan.num_items; ++i) {
      const AttentionItem& item = items[static_cast<size_t>(i)];
      EXPECT_EQ(item.first_row, next);
      EXPECT_TRUE(item.num_rows >= 1 && item.num_rows <= rows_per_item);
      next += item.num_rows;
      const auto first = std::ranges::find(rows.sequences, item.sequence) - rows.sequences.begin();
      EXPECT_EQ(item.first_new, rows.positions[static_cast<size_t>(first)]);
      for (int32_t row = item.first_row; row < next; ++row) {
        EXPECT_EQ(rows.sequences[static_cast<size_t>(row)], item.sequence);
      }
      const int32_t last = rows.positions[static_cast<size_t>(next - 1)];
      EXPECT_TRUE(last < item.num_splits * kSplitPositions &&
                  last >= (item.num_splits - 1) * kSplitPositions);
      max_splits = std::max(max_splits, item.num_splits);
    }
    EXPECT_EQ(next, static_cast<int32_t>(rows.positions.size()));
    EXPECT_EQ(plan.max_splits, max_splits);
  }
}

TEST(AttentionPlan, RowsThatStartOverAreAnotherItem) {
  const std::vector<int32_t> positions = {8, 9, 9, 3};
  const std::vector<int32_t> sequences = {0, 0, 0, 0};
  std::vector<AttentionItem> items(4);
  EXPECT_EQ(plan_attention({positions, sequences}, 4, 20, items).num_items, 3);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(items[static_cast<size_t>(i)].first_new, 3);
}

TEST(AttentionPlan, ItemsAreEvenAndFillTiles) {
  EXPECT_EQ(sizes_of(17, 4, 128), (std::vector<int32_t>{17}));  // a draft of 16 in one item
  EXPECT_EQ(sizes_of(21, 4, 128), (std::vector<int32_t>{12, 9}));
  EXPECT_EQ(sizes_of(17, 8, 128), (std::vector<int32_t>{10, 7}));
  EXPECT_EQ(sizes_of(17, 4, 256), (std::vector<int32_t>{12, 5}));
  EXPECT_EQ(sizes_of(12, 7, 128), (std::vector<int32_t>{6, 6}));
  EXPECT_EQ(sizes_of(33, 1, 64), (std::vector<int32_t>{32, 1}));
  EXPECT_EQ(sizes_of(2, 128, 64), (std::vector<int32_t>{1, 1}));
}

TEST(AttentionPlan, ATileHasWholeRows) {
  EXPECT_EQ(rows_of_attention_tile(1), 16);
  EXPECT_EQ(rows_of_attention_tile(4), 4);
  EXPECT_EQ(rows_of_attention_tile(7), 2);
  EXPECT_EQ(rows_of_attention_tile(128), 1);
}

TEST(AttentionPlan, SaysWhenThereIsNoRoom) {
  Rows rows;
  rows.add(0, 0, 41);
  std::vector<AttentionItem> items(2);
  EXPECT_THROW(plan_attention({rows.positions, rows.sequences}, 4, 20, items), Error);
}

TEST(AttentionPlan, FewBucketsDoForAllSteps) {
  std::set<std::pair<int32_t, int32_t>> buckets;
  for (int32_t items = 0; items <= 32; ++items) {
    for (int32_t splits = 0; splits <= 512; ++splits) {
      const AttentionBucket bucket =
          attention_bucket({.num_items = items, .max_splits = splits}, 32);
      EXPECT_TRUE(bucket.max_items >= std::max(items, 1) && bucket.max_items <= 32);
      EXPECT_TRUE(bucket.max_splits >= std::max(splits, 1) && bucket.max_splits <= 512);
      buckets.insert({bucket.max_items, bucket.max_splits});
    }
  }
  EXPECT_EQ(buckets.size(), 6u * 10u);
  EXPECT_EQ(attention_bucket({.num_items = 5, .max_splits = 1}, 6).max_items, 6);
}

}  // namespace
}  // namespace outrider::gpu
