// Prompt lookup: which match wins, and equality with a plain form of its definition on random
// texts.
#include "scheduler/drafting/ngram.h"

#include <gtest/gtest.h>

#include <random>

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

Tokens propose(const Tokens& tokens, int32_t longest, int32_t shortest, int32_t draft_len) {
  return propose_ngram(tokens, {longest, shortest}, draft_len).tokens;
}

TEST(Ngram, RepeatsWhatFollowedTheSuffix) {
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 1, 2}, 4, 2, 3), (Tokens{3, 4, 5}));
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 1, 2}, 4, 2, 1), (Tokens{3}));
}

TEST(Ngram, LongestSuffixWinsOverMostRecent) {
  // 7 8 9 -> 1 is longer than 8 9 -> 2, which is more recent.
  EXPECT_EQ(propose({7, 8, 9, 1, 8, 9, 2, 7, 8, 9}, 3, 1, 1), (Tokens{1}));
  EXPECT_EQ(propose({7, 8, 9, 1, 8, 9, 2, 7, 8, 9}, 2, 1, 1), (Tokens{2}));
}

TEST(Ngram, MostRecentOfEqualMatches) {
  EXPECT_EQ(propose({5, 6, 1, 5, 6, 2, 5, 6}, 4, 2, 1), (Tokens{2}));
}

TEST(Ngram, ContinuesShortPeriods) {
  EXPECT_EQ(propose({4, 4, 4}, 2, 1, 4), (Tokens{4, 4, 4, 4}));
  EXPECT_EQ(propose({1, 2, 1, 2, 1}, 2, 2, 5), (Tokens{2, 1, 2, 1, 2}));
}

TEST(Ngram, NothingToOffer) {
  EXPECT_TRUE(propose({}, 4, 1, 3).empty());
  EXPECT_TRUE(propose({1}, 4, 1, 3).empty());
  EXPECT_TRUE(propose({1, 2, 3}, 4, 1, 3).empty());
  EXPECT_TRUE(propose({1, 9, 1}, 4, 2, 3).empty());  // one token matches, two are asked for
  EXPECT_TRUE(propose({1, 1, 1}, 4, 1, 0).empty());
  EXPECT_TRUE(propose({1, 1, 1}, 4, 1, -1).empty());
}

// The definition, written as slowly as it reads.
Tokens slow_bonus_draft(const Tokens& tokens,
                        int32_t longest,
                        int32_t shortest,
                        int32_t draft_len) {
  const int size = static_cast<int>(tokens.size());
  for (int length = longest; length >= shortest; --length) {
    for (int begin = size - length - 1; begin >= 0; --begin) {
      if (!std::equal(tokens.end() - length, tokens.end(), tokens.begin() + begin)) continue;
      Tokens text = tokens;
      for (int i = 0; i < draft_len; ++i)
        text.push_back(text[static_cast<size_t>(begin + length + i)]);
      return Tokens(text.begin() + size, text.end());
    }
  }
  return {};
}

TEST(Ngram, EqualsTheDefinitionOnRandomTexts) {
  std::mt19937 random(3);
  int num_found = 0;
  int num_missed = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Tokens tokens(random() % 24);
    const uint32_t alphabet = 2 + random() % 5;
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % alphabet);
    const int32_t shortest = 1 + static_cast<int32_t>(random() % 4);
    const int32_t longest =
        std::min<int32_t>(shortest + static_cast<int32_t>(random() % 4),
                          std::max<int32_t>(shortest, static_cast<int32_t>(tokens.size())));
    if (longest > static_cast<int32_t>(tokens.size())) continue;
    const Tokens expected = slow_bonus_draft(tokens, longest, shortest, 5);
    ASSERT_EQ(propose(tokens, longest, shortest, 5), expected);
    ++(expected.empty() ? num_missed : num_found);
  }
  EXPECT_GT(num_found, 1000);
  EXPECT_GT(num_missed, 1000);
}

}  // namespace
}  // namespace outrider
