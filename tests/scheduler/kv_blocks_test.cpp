// Growth, loss and release of KV blocks; the books stay exact under random use, and the check of
// the books finds faults.
#include "scheduler/batching/kv_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>

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
  EXPECT_EQ(fault_of(blocks, twice), "block 0 has 2 owners, not 1");
  EXPECT_EQ(fault_of(blocks, {}), "block 0 has 0 owners, not 1");
  const BlockTable stale = tables[0];
  blocks.shrink(tables[0], 1);
  EXPECT_EQ(fault_of(blocks, {stale}), "block 1 is free and owned");
}

// ---- reuse
// -------------------------------------------------------------------------------------------

using Tokens = std::vector<int32_t>;

Tokens text_of(int32_t first, int32_t size) {
  Tokens tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A table with the whole text computed and published.
BlockTable published(KvBlocks& blocks, const Tokens& tokens) {
  BlockTable table;
  const auto size = static_cast<int64_t>(tokens.size());
  EXPECT_TRUE(blocks.grow(table, size));
  blocks.publish(table, tokens, size);
  return table;
}

TEST(KvReuse, FindsFullBlocksOfTheSameTextOnly) {
  KvBlocks blocks(16, 4);
  const Tokens text = text_of(100, 14);
  BlockTable table;
  ASSERT_TRUE(blocks.grow(table, 14));
  EXPECT_TRUE(blocks.find_prefix(text, 14).blocks.empty()) << "not published";
  blocks.publish(table, text, 11);
  EXPECT_EQ(table.num_shared(), 2);
  blocks.publish(table, text, 14);
  EXPECT_EQ(table.num_shared(), 3) << "the last block is not full";
  const Tokens first_three(table.ids().begin(), table.ids().begin() + 3);
  EXPECT_EQ(blocks.find_prefix(text, 14).blocks, first_three);
  EXPECT_EQ(blocks.find_prefix(text, 14).num_cached, 0);
  EXPECT_EQ(blocks.find_prefix(text, 11).blocks.size(), 2u) << "no more than asked for";
  EXPECT_EQ(blocks.find_prefix(text, 3).blocks.size(), 0u);
  EXPECT_EQ(blocks.find_prefix(text, 0).blocks.size(), 0u);
  Tokens other = text;
  other[5] = 7;
  EXPECT_EQ(blocks.find_prefix(other, 14).blocks.size(), 1u);
  other[0] = 7;
  EXPECT_EQ(blocks.find_prefix(other, 14).blocks.size(), 0u);
  // The same tokens after another text are another content.
  const Tokens tail(text.begin() + 4, text.end());
  EXPECT_EQ(blocks.find_prefix(tail, 10).blocks.size(), 0u);
  EXPECT_EQ(fault_of(blocks, {table}), "");
}

TEST(KvReuse, SharedBlocksAreFreeWhenTheLastTableGoes) {
  KvBlocks blocks(8, 4);
  const Tokens text = text_of(1, 12);
  std::vector<BlockTable> tables = {published(blocks, text), {}};
  blocks.share(tables[1], blocks.find_prefix(text, 11));
  EXPECT_EQ(tables[1].size(), 2);
  EXPECT_EQ(tables[1].num_shared(), 2);
  ASSERT_TRUE(blocks.grow(tables[1], 12));
  EXPECT_EQ(blocks.num_free(), 4);
  EXPECT_EQ(fault_of(blocks, tables), "");
  blocks.shrink(tables[0], 0);
  EXPECT_EQ(blocks.num_free(), 5);
  EXPECT_EQ(blocks.find_prefix(text, 12).num_cached, 1);
  EXPECT_EQ(fault_of(blocks, tables), "");
  blocks.shrink(tables[1], 0);
  EXPECT_EQ(blocks.num_free(), 8);
  EXPECT_EQ(tables[1].num_shared(), 0);
  EXPECT_EQ(fault_of(blocks, tables), "");
}

TEST(KvReuse, TheLeastRecentlyFreedIsEmptiedFirstAndTailsBeforeHeads) {
  KvBlocks blocks(6, 1);
  const Tokens old_text = {1, 2, 3};
  const Tokens new_text = {4, 5};
  BlockTable old_table = published(blocks, old_text);
  BlockTable new_table = published(blocks, new_text);
  blocks.shrink(old_table, 0);
  blocks.shrink(new_table, 0);
  std::vector<BlockTable> tables(1);
  const auto expect_found = [&](size_t num_old, size_t num_new) {
    EXPECT_EQ(blocks.find_prefix(old_text, 3).blocks.size(), num_old);
    EXPECT_EQ(blocks.find_prefix(new_text, 2).blocks.size(), num_new);
    EXPECT_EQ(fault_of(blocks, tables), "");
  };
  ASSERT_TRUE(blocks.grow(tables[0], 1));  // the block that was always empty
  expect_found(3, 2);
  ASSERT_TRUE(blocks.grow(tables[0], 2));
  expect_found(2, 2);
  ASSERT_TRUE(blocks.grow(tables[0], 4));
  expect_found(0, 2);
  ASSERT_TRUE(blocks.grow(tables[0], 5));
  expect_found(0, 1);
  ASSERT_TRUE(blocks.grow(tables[0], 6));
  expect_found(0, 0);
  EXPECT_FALSE(blocks.grow(tables[0], 7));
}

TEST(KvReuse, WhatIsFoundAgainIsFreedAnew) {
  KvBlocks blocks(4, 1);
  for (int32_t token = 1; token <= 4; ++token) {
    BlockTable table = published(blocks, {token});
    blocks.shrink(table, 0);
  }
  BlockTable again;
  blocks.share(again, blocks.find_prefix(Tokens{1}, 1));
  blocks.shrink(again, 0);
  BlockTable table;
  ASSERT_TRUE(blocks.grow(table, 3));
  EXPECT_EQ(blocks.find_prefix(Tokens{1}, 1).blocks.size(), 1u);
  EXPECT_EQ(blocks.find_prefix(Tokens{4}, 1).blocks.size(), 0u);
}

TEST(KvReuse, TwoThatComputedTheSameEndUpWithOneBlock) {
  KvBlocks blocks(8, 2);
  const Tokens text = text_of(1, 4);
  std::vector<BlockTable> tables(2);
  SequencePlan plan;
  for (BlockTable& table : tables) {
    ASSERT_TRUE(blocks.grow(table, 5));
    table.tell(plan);
  }
  blocks.publish(tables[0], text, 4);
  tables[0].tell(plan);
  EXPECT_FALSE(plan.replace_blocks);
  blocks.publish(tables[1], text, 4);
  EXPECT_EQ(blocks.num_free(), 4);
  EXPECT_EQ(tables[0].ids()[0], tables[1].ids()[0]);
  EXPECT_EQ(tables[0].ids()[1], tables[1].ids()[1]);
  EXPECT_NE(tables[0].ids()[2], tables[1].ids()[2]);
  tables[1].tell(plan);
  EXPECT_TRUE(plan.replace_blocks) << "the ranks must hear of it";
  EXPECT_EQ(plan.new_blocks, tables[1].ids());
  EXPECT_EQ(fault_of(blocks, tables), "");
}

TEST(KvReuse, WithdrawnBlocksAreNeverFound) {
  KvBlocks blocks(8, 2);
  const Tokens text = text_of(1, 6);
  std::vector<BlockTable> tables = {published(blocks, text), {}};
  blocks.share(tables[1], blocks.find_prefix(text, 4));
  blocks.withdraw(tables[0]);
  EXPECT_EQ(blocks.find_prefix(text, 6).blocks.size(), 0u);
  EXPECT_EQ(fault_of(blocks, tables), "");
  blocks.shrink(tables[0], 0);
  EXPECT_EQ(blocks.num_free(), 6);
  // The other one may still go on, and publish what nobody can reach any more.
  ASSERT_TRUE(blocks.grow(tables[1], 6));
  blocks.publish(tables[1], text, 6);
  EXPECT_EQ(blocks.find_prefix(text, 6).blocks.size(), 0u);
  blocks.shrink(tables[1], 0);
  EXPECT_EQ(fault_of(blocks, tables), "");
  EXPECT_EQ(blocks.num_free(), 8);
  // A new text of the same tokens starts afresh.
  std::vector<BlockTable> fresh = {published(blocks, text)};
  EXPECT_EQ(blocks.find_prefix(text, 6).blocks, fresh[0].ids());
  EXPECT_EQ(fault_of(blocks, fresh), "");
}

TEST(KvBlocks, TellsWhatBecameEmptyAndStillIs) {
  KvBlocks blocks(6, 2);
  blocks.track_freed();
  EXPECT_EQ(blocks.take_freed(), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(blocks.take_freed().empty());
  BlockTable first;
  BlockTable second;
  ASSERT_TRUE(blocks.grow(first, 8));
  const std::vector<int32_t> held = first.ids();
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  blocks.publish(first, tokens, 4);
  blocks.shrink(first, 0);
  // The two published ones are cached, not empty; the third is somebody's again.
  ASSERT_TRUE(blocks.grow(second, 2));
  const int32_t taken = second.ids()[0];
  const std::vector<int32_t> freed = blocks.take_freed();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_TRUE(freed[0] == held[2] || freed[0] == held[3]);
  EXPECT_NE(freed[0], taken);
  blocks.shrink(second, 0);
  blocks.grow(second, 2);
  blocks.shrink(second, 0);
  EXPECT_EQ(blocks.take_freed(), std::vector<int32_t>{taken});
  // What is cached becomes somebody's without having been empty.
  ASSERT_TRUE(blocks.grow(second, 12));
  EXPECT_TRUE(blocks.take_freed().empty());
  blocks.shrink(second, 0);
  EXPECT_EQ(blocks.take_freed().size(), 6u);
}

TEST(KvReuse, OtherSaltsShareNothing) {
  KvBlocks blocks(16, 4);
  const Tokens text = text_of(1, 8);
  std::map<std::string, BlockTable> tables;
  for (const char* salt : {"", "a", "b"}) {
    EXPECT_TRUE(blocks.find_prefix(text, 8, salt).blocks.empty()) << salt;
    BlockTable& table = tables[salt];
    EXPECT_TRUE(blocks.grow(table, 8));
    blocks.publish(table, text, 8, salt);
    EXPECT_EQ(blocks.find_prefix(text, 8, salt).blocks, table.ids());
  }
  for (auto& [salt, table] : tables)
    EXPECT_EQ(blocks.find_prefix(text, 8, salt).blocks, table.ids());
  // A block that was emptied has no salt any more.
  blocks.withdraw(tables["a"]);
  EXPECT_TRUE(blocks.find_prefix(text, 8, "a").blocks.empty());
  blocks.shrink(tables["a"], 0);
  tables["a"] = published(blocks, text_of(50, 8));
  EXPECT_EQ(blocks.find_prefix(text_of(50, 8), 8).blocks, tables["a"].ids());
  EXPECT_TRUE(blocks.find_prefix(text_of(50, 8), 8, "a").blocks.empty());
}

// Against a plain record of what text each block holds.
TEST(KvReuse, WhatIsFoundHoldsThatTextUnderRandomUse) {
  struct Sequence {
    BlockTable table;
    Tokens tokens;
    std::string salt;
  };
  constexpr int32_t kSize = 2;
  std::mt19937 random(11);
  KvBlocks blocks(30, kSize);
  std::vector<Sequence> sequences(5);
  std::vector<std::pair<std::string, Tokens>> text_in_block(30);
  size_t num_found = 0;
  size_t num_withdrawn = 0;
  for (int step = 0; step < 20000; ++step) {
    Sequence& sequence = sequences[random() % sequences.size()];
    if (sequence.tokens.empty()) {
      for (size_t size = random() % 14 + 1; size > 0; --size) {
        sequence.tokens.push_back(static_cast<int32_t>(random() % 2));
      }
      sequence.salt = std::string(random() % 2, 'a');
      const auto size = static_cast<int64_t>(sequence.tokens.size());
      const KvPrefix prefix = blocks.find_prefix(sequence.tokens, size - 1, sequence.salt);
      blocks.share(sequence.table, prefix);
      for (size_t i = 0; i < prefix.blocks.size(); ++i) {
        const auto end = sequence.tokens.begin() + static_cast<ptrdiff_t>(i + 1) * kSize;
        ASSERT_EQ(text_in_block[static_cast<size_t>(prefix.blocks[i])],
                  std::pair(sequence.salt, Tokens(sequence.tokens.begin(), end)));
      }
      num_found += prefix.blocks.size();
      if (!blocks.grow(sequence.table, size)) {
        blocks.shrink(sequence.table, 0);
        sequence.tokens.clear();
      }
    } else if (random() % 3 == 0) {
      if (random() % 8 == 0) {
        blocks.withdraw(sequence.table);
        ++num_withdrawn;
      }
      blocks.shrink(sequence.table, 0);
      sequence.tokens.clear();
    } else {
      // The private blocks get their text, then they are published.
      for (int32_t i = sequence.table.num_shared(); i < sequence.table.size(); ++i) {
        const size_t end = std::min(sequence.tokens.size(), static_cast<size_t>(i + 1) * kSize);
        text_in_block[static_cast<size_t>(sequence.table.ids()[static_cast<size_t>(i)])] = {
            sequence.salt,
            Tokens(sequence.tokens.begin(), sequence.tokens.begin() + static_cast<ptrdiff_t>(end))};
      }
      blocks.publish(sequence.table,
                     sequence.tokens,
                     static_cast<int64_t>(sequence.tokens.size()),
                     sequence.salt);
    }
    std::vector<const BlockTable*> tables;
    for (const Sequence& each : sequences) tables.push_back(&each.table);
    ASSERT_EQ(blocks.fault(tables), "") << "step " << step;
  }
  EXPECT_GT(num_found, 2000u);
  EXPECT_GT(num_withdrawn, 200u);
}

}  // namespace
}  // namespace outrider
