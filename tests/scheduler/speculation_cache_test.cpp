// Blocks for outcomes against a map that keeps everything, and the bounds.
#include "scheduler/drafting/speculation_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "tests/scheduler/packed.h"

namespace outrider {
namespace {

std::vector<DraftToken> tokens_of(std::initializer_list<int32_t> ids) {
  std::vector<DraftToken> tokens;
  for (int32_t id : ids) tokens.push_back({id, {}});
  return tokens;
}

bool store(SpeculationCache& cache,
           int32_t base_len,
           int32_t guess,
           int32_t first,
           const std::vector<DraftToken>& tokens) {
  return cache.store(base_len, guess, first, {tokens.size(), testing::packed(tokens)});
}

std::vector<DraftToken> take(SpeculationCache& cache, int32_t base_len, int32_t guess) {
  std::vector<DraftToken> block = tokens_of({99});  // of the round before
  cache.take(base_len, guess, block);
  return block;
}

TEST(SpeculationCache, ABlockGrowsWhereItEnded) {
  SpeculationCache cache;
  EXPECT_TRUE(store(cache, 5, 7, 0, tokens_of({1, 2})));
  EXPECT_TRUE(store(cache, 5, 8, 0, tokens_of({9})));
  EXPECT_FALSE(store(cache, 5, 7, 0, tokens_of({3}))) << "begun twice";
  EXPECT_FALSE(store(cache, 5, 7, 3, tokens_of({3}))) << "a gap";
  EXPECT_FALSE(store(cache, 5, 7, -1, tokens_of({3})));
  EXPECT_FALSE(store(cache, 6, 7, 2, tokens_of({3}))) << "goes on with what never began";
  EXPECT_TRUE(store(cache, 5, 7, 2, tokens_of({3})));
  EXPECT_FALSE(store(cache, 6, 1, 0, {})) << "nothing is nothing";
  EXPECT_EQ(cache.num_blocks(), 2u);
  EXPECT_EQ(cache.num_tokens(), 4u);
  EXPECT_EQ(take(cache, 5, 7), tokens_of({1, 2, 3}));
  EXPECT_EQ(cache.num_blocks(), 0u) << "the other outcomes did not come";
  EXPECT_TRUE(take(cache, 5, 8).empty());
}

TEST(SpeculationCache, IsBoundedInBlocksAndTokens) {
  SpeculationCache cache;
  for (int32_t guess = 0; guess < 1000; ++guess) store(cache, 5, guess, 0, tokens_of({1}));
  EXPECT_EQ(cache.num_blocks(), SpeculationCache::kMaxBlocks);
  EXPECT_FALSE(store(cache, 5, 2000, 0, tokens_of({1})));
  EXPECT_TRUE(store(cache, 5, 3, 1, tokens_of({2}))) << "what is there may grow";
  int32_t first = 1;
  while (store(cache, 5, 0, first, tokens_of({1}))) ++first;
  EXPECT_EQ(cache.num_tokens(), SpeculationCache::kMaxTokens);
  EXPECT_FALSE(store(cache, 5, 1, 1, std::vector<DraftToken>(SpeculationCache::kMaxTokens + 1)));
  cache.clear();
  EXPECT_TRUE(store(cache, 5, 2000, 0, tokens_of({1})));
}

TEST(SpeculationCache, WhatCannotBeReadWasNotPrepared) {
  const std::vector<DraftToken> tokens = {{5, {{5, 0.5f}, {6, 0.5f}}}, {7, {}}};
  std::vector<std::byte> bytes = testing::packed(tokens);
  SpeculationCache cache;
  EXPECT_TRUE(cache.store(5, 7, 0, {2, bytes}));
  EXPECT_EQ(take(cache, 5, 7), tokens);
  for (const size_t said : {size_t{1}, size_t{3}, size_t{4}, size_t{1000}}) {
    cache.store(5, 7, 0, {said, bytes});
    EXPECT_TRUE(take(cache, 5, 7).empty()) << said << " tokens of 2";
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(cache.store(5, 7, 0, {2, std::span(bytes).first(size)}));
    EXPECT_TRUE(take(cache, 5, 7).empty()) << size << " bytes";
  }
  bytes[4] = std::byte{0xff};
  bytes[7] = std::byte{0xff};  // four thousand million candidates
  cache.store(5, 7, 0, {2, bytes});
  EXPECT_TRUE(take(cache, 5, 7).empty());
}

TEST(SpeculationCache, IsBoundedInBytes) {
  SpeculationCache cache;
  const std::vector<std::byte> most(SpeculationCache::kMaxBytes);
  EXPECT_FALSE(cache.store(5, 1, 0, {1, std::vector<std::byte>(most.size() + 1)}));
  EXPECT_TRUE(cache.store(5, 1, 0, {1, most}));
  EXPECT_FALSE(store(cache, 5, 2, 0, tokens_of({1})));
  cache.clear();
  EXPECT_TRUE(store(cache, 5, 2, 0, tokens_of({1})));
}

TEST(SpeculationCache, RandomStreamsLikeAMapThatKeepsAll) {
  std::mt19937 random(11);
  const auto below = [&](int limit) { return static_cast<int32_t>(random() % limit); };
  int num_stored = 0;
  int num_refused = 0;
  int num_hits = 0;
  for (int round = 0; round < 3000; ++round) {
    SpeculationCache cache;
    std::map<std::pair<int32_t, int32_t>, std::vector<DraftToken>> kept;
    for (int i = below(30); i > 0; --i) {
      const std::pair<int32_t, int32_t> key = {below(4), below(4)};
      std::vector<DraftToken> tokens;
      for (int j = below(4); j > 0; --j) tokens.push_back({below(100), {}});
      const auto at = kept.find(key);
      const int32_t size = at == kept.end() ? 0 : static_cast<int32_t>(at->second.size());
      const int32_t first = below(4) == 0 ? below(6) - 1 : size;
      const bool fits = !tokens.empty() && first == size;
      if (fits) kept[key].insert(kept[key].end(), tokens.begin(), tokens.end());
      ASSERT_EQ(store(cache, key.first, key.second, first, tokens), fits);
      ++(fits ? num_stored : num_refused);
    }
    size_t num_tokens = 0;
    for (const auto& [key, tokens] : kept) num_tokens += tokens.size();
    ASSERT_EQ(cache.num_tokens(), num_tokens);
    ASSERT_EQ(cache.num_blocks(), kept.size());
    const std::pair<int32_t, int32_t> outcome = {below(4), below(4)};
    const std::vector<DraftToken> taken = take(cache, outcome.first, outcome.second);
    ASSERT_EQ(taken, kept[outcome]);
    num_hits += taken.empty() ? 0 : 1;
    ASSERT_EQ(cache.num_tokens(), 0u);
  }
  EXPECT_GT(num_stored, 10000);
  EXPECT_GT(num_refused, 5000);
  EXPECT_GT(num_hits, 500);
}

}  // namespace
}  // namespace outrider
