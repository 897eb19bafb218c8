// Token masks through a whole job: two target ranks, a draft that masks too, other requests beside
// one whose masks leave nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::string kPrompt = "Once upon a time there was";

bool contains(const std::vector<int32_t>& text, const std::vector<int32_t>& part) {
  return std::search(text.begin(), text.end(), part.begin(), part.end()) != text.end();
}

TEST(TokenMaskEngine, OnlyAllowedTokensComeOutAndTheDraftKnowsThem) {
  std::vector<Ask> asks;
  for (size_t i = 0; i < 6; ++i) {
    SamplingParams params = i % 3 == 0   ? greedy(40)
                            : i % 3 == 1 ? seeded(0.8f, i, 40)
                                         : sampled(0.8f, 40);
    for (int32_t id = 0; id < 3000; ++id) {
      if (id % 3 != 1) params.allowed_token_ids.push_back(id);
    }
    asks.push_back({kPrompt, params});
  }
  int num_drafted = 0;
  int num_accepted = 0;
  for (const Outcome& outcome : run_asks(patient(embedded_config(2, 4)), asks)) {
    ASSERT_EQ(outcome.finish_reason, FinishReason::kLength) << outcome.error;
    ASSERT_EQ(outcome.tokens.size(), 40u);
    for (int32_t token : outcome.tokens) ASSERT_NE(token % 3, 1);
    EXPECT_GT(std::set<int32_t>(outcome.tokens.begin(), outcome.tokens.end()).size(), 4u);
    num_drafted += outcome.stats.num_draft_tokens;
    num_accepted += outcome.stats.num_accepted_tokens;
  }
  EXPECT_GT(num_accepted, num_drafted / 5);
}

TEST(TokenMaskEngine, ABadWordOfTwoTokensIsNeverCompleted) {
  const std::vector<int32_t> free =
      run_asks(embedded_config(1, 0), {{kPrompt, greedy(30)}})[0].tokens;
  ASSERT_GE(free.size(), 8u);
  SamplingParams params = greedy(30);
  params.bad_words = {{free[2], free[3]}};
  const Outcome masked = run_asks(embedded_config(2, 4), {{kPrompt, params}})[0];
  EXPECT_TRUE(contains(free, params.bad_words[0]));
  EXPECT_FALSE(contains(masked.tokens, params.bad_words[0]));
  // The first token of the word may come; only what would complete it is replaced.
  EXPECT_TRUE(std::equal(free.begin(), free.begin() + 3, masked.tokens.begin()));
  EXPECT_NE(masked.tokens[3], free[3]);
}

TEST(TokenMaskEngine, NothingLeftEndsThatRequestAlone) {
  SamplingParams at_once = greedy(20);
  at_once.allowed_token_ids = {300};
  at_once.bad_words = {{300}};
  SamplingParams later = seeded(1.0f, 5, 20);
  later.allowed_token_ids = {300, 301};
  later.bad_words = {{300, 300}, {300, 301}, {301, 300}, {301, 301}};
  const std::vector<Ask> others = {{kPrompt, greedy(40)}, {kPrompt, seeded(0.9f, 3, 40)}};
  const std::vector<Outcome> expected = run_asks(embedded_config(1, 0), others);
  for (int draft_len : {0, 4}) {
    const std::vector<Outcome> outcomes =
        run_asks(embedded_config(2, draft_len),
                 {others[0], {kPrompt, at_once}, {kPrompt, later}, others[1]});
    for (size_t i : {1, 2}) {
      EXPECT_EQ(outcomes[i].finish_reason, FinishReason::kError);
      EXPECT_EQ(outcomes[i].error.rfind("no token is allowed to come next", 0), 0u)
          << outcomes[i].error;
    }
    EXPECT_TRUE(outcomes[1].tokens.empty());
    EXPECT_LE(outcomes[2].tokens.size(), 1u);
    EXPECT_EQ(outcomes[0].tokens, expected[0].tokens);
    EXPECT_EQ(outcomes[3].tokens, expected[1].tokens);
  }
}

}  // namespace
}  // namespace outrider::test
