// Growth, loss and release of KV blocks; the books stay exact under random use, and the check of
// the books finds faults.
#include "scheduler/kv_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace outrider {
namespace {

std::string fault_of(const KvBlocks& blocks, const std::vector<BlockTable>& tables) {
  std::vector<const BlockTable*> pointers;
  for (const BlockTable& table : tables) pointers.push_back(&table);
  return blocks.fault(pointers);
}

TEST(KvBlocks, GrowsByWholeBlocksAndOnlyWhenAllAreThere) {
  KvBlocks blocks(3, 4);
  BlockTable table;
  EXPECT_TRUE(blocks.grow(table, 0));
  EXPECT_EQ(table.size(), 0);
  EXPECT_TRUE(blocks.grow(table, 5));
  EXPECT_EQ(table.size(), 2);
  EXPECT_TRUE(blocks.grow(table, 8));
  EXPECT_EQ(table.size(), 2);
  EXPECT_FALSE(blocks.grow(table, 13));
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(blocks.num_free(), 1);
  blocks.shrink(table, 4);
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(blocks.num_free(), 2);
}

TEST(KvBlocks, TellsOnlyWhatIsNewAndEverythingAfterALoss) {
  KvBlocks blocks(8, 1);
  BlockTable table;
  SequencePlan plan;
  ASSERT_TRUE(blocks.grow(table, 2));
  table.tell(plan);
  EXPECT_FALSE(plan.replace_blocks);
  EXPECT_EQ(plan.new_blocks, table.ids());
  ASSERT_TRUE(blocks.grow(table, 3));
  table.tell(plan);
  EXPECT_FALSE(plan.replace_blocks);
  EXPECT_EQ(plan.new_blocks, std::vector<int32_t>{table.ids()[2]});
  table.tell(plan);
  EXPECT_TRUE(plan.new_blocks.empty());
  // Blocks that were never told can go without a word, told ones not.
  ASSERT_TRUE(blocks.grow(table, 4));
  blocks.shrink(table, 3);
  table.tell(plan);
  EXPECT_FALSE(plan.replace_blocks);
  blocks.shrink(table, 1);
  ASSERT_TRUE(blocks.grow(table, 3));
  table.tell(plan);
  EXPECT_TRUE(plan.replace_blocks);
  EXPECT_EQ(plan.new_blocks, table.ids());
  table.tell(plan);
  EXPECT_FALSE(plan.replace_blocks);
}

TEST(KvBlocks, BooksStayExactUnderRandomUse) {
  std::mt19937 random(7);
  KvBlocks blocks(40, 3);
  std::vector<BlockTable> tables(6);
  int num_refused = 0;
  for (int step = 0; step < 5000; ++step) {
    BlockTable& table = tables[random() % tables.size()];
    const int64_t num_positions = static_cast<int64_t>(random() % 40);
    if (random() % 2 == 0) {
      if (!blocks.grow(table, num_positions)) ++num_refused;
    } else {
      blocks.shrink(table, num_positions);
    }
    ASSERT_EQ(fault_of(blocks, tables), "");
    int32_t num_owned = 0;
    for (const BlockTable& each : tables) num_owned += each.size();
    ASSERT_EQ(num_owned + blocks.num_free(), 40);
  }
  EXPECT_GT(num_refused, 50);
}

TEST(KvBlocks, FaultsAreFound) {
  KvBlocks blocks(4, 1);
  std::vector<BlockTable> tables(2);
  ASSERT_TRUE(blocks.grow(tables[0], 2));
  EXPECT_EQ(fault_of(blocks, tables), "");
  const std::vector<BlockTable> twice = {tables[0], tables[0]};
  EXPECT_EQ(fault_of(blocks, twice), "block 0 has 2 owners");
  EXPECT_EQ(fault_of(blocks, {}), "block 0 is leaked");
  const BlockTable stale = tables[0];
  blocks.shrink(tables[0], 1);
  EXPECT_EQ(fault_of(blocks, {stale}), "block 1 is free and owned");
}

}  // namespace
}  // namespace outrider
