// Promise P2: greedy text, and sampled text with a seed, is the same with and without a draft, for
// every draft length, batch mix and after preemption, on 1, 2 and 4 target ranks (compared within
// one number of ranks).
#include <gtest/gtest.h>

#include <set>

#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::vector<std::string> kPrompts = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door",
    "The old woman went into the forest to gather wood, and",
    "My dear Watson,",
    "The soldiers had been marching since the morning. The officer looked at the sky and said",
    "A",
    "In the garden stood a tree that bore golden apples, and every night one of the apples was "
    "stolen.",
    "\"What is it?\" asked Natasha.",
};

std::vector<Ask> asks_with(const std::function<SamplingParams(size_t)>& params) {
  std::vector<Ask> asks;
  for (size_t i = 0; i < kPrompts.size(); ++i) asks.push_back({kPrompts[i], params(i)});
  return asks;
}

// Alone: one request after the other, so that batches hold a single sequence.
std::vector<std::vector<int32_t>> run_alone(const RunConfig& config, const std::vector<Ask>& asks) {
  std::vector<Outcome> outcomes;
  run_engine(config, [&](const FrontEndContext& context) {
    for (const Ask& ask : asks) {
      auto stream = submit(context.engine, context.tokenizer->encode(ask.prompt), ask.params);
      ASSERT_NE(stream, nullptr);
      outcomes.push_back(collect(*stream));
    }
  });
  return tokens_of(outcomes);
}

// Otherwise equality would be a test of nothing. (A small model may loop in one greedy text, not in
// all.)
void expect_varied(const std::vector<std::vector<int32_t>>& tokens) {
  std::set<std::vector<int32_t>> distinct_texts(tokens.begin(), tokens.end());
  EXPECT_EQ(distinct_texts.size(), tokens.size());
  std::set<int32_t> distinct_tokens;
  for (const auto& text : tokens) distinct_tokens.insert(text.begin(), text.end());
  EXPECT_GT(distinct_tokens.size(), 50u);
}

class SameText : public ::testing::TestWithParam<int> {};  // target ranks

TEST_P(SameText, GreedyWithAndWithoutDraft) {
  const std::vector<Ask> asks = asks_with([](size_t) { return greedy(48); });
  const auto expected = run_alone(embedded_config(GetParam(), 0), asks);
  expect_varied(expected);
  for (int draft_len : {1, 2, 4, 8, 16}) {
    const RunConfig config = embedded_config(GetParam(), draft_len);
    EXPECT_EQ(run_alone(config, asks), expected) << "alone, draft_len " << draft_len;
    const std::vector<Outcome> together = run_asks(patient(config), asks);
    EXPECT_EQ(tokens_of(together), expected) << "8 in flight, draft_len " << draft_len;
    EXPECT_GT(num_accepted(together), 0) << "draft_len " << draft_len;
  }
}

TEST_P(SameText, SeededWithAndWithoutDraft) {
  const std::vector<Ask> asks = asks_with([](size_t i) { return seeded(0.8f, 1000 + i, 48); });
  const auto expected = run_alone(embedded_config(GetParam(), 0), asks);
  expect_varied(expected);
  for (int draft_len : {1, 2, 4, 8, 16}) {
    const std::vector<Outcome> together =
        run_asks(patient(embedded_config(GetParam(), draft_len)), asks);
    EXPECT_EQ(tokens_of(together), expected) << "draft_len " << draft_len;
    EXPECT_GT(num_accepted(together), 0) << "draft_len " << draft_len;
  }
  EXPECT_EQ(run_alone(embedded_config(GetParam(), 4), asks), expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SameText, ::testing::Values(1, 2, 4));

TEST(SameTextOneRank, NgramDraft) {
  const std::string repeating =
      "the king said to the queen, and the king said to the queen, and the king said";
  std::vector<Ask> asks =
      asks_with([](size_t i) { return i % 2 == 0 ? greedy(40) : seeded(0.5f, i, 40); });
  asks.push_back({repeating, greedy(40)});
  const auto expected = run_alone(embedded_config(1, 0), asks);
  RunConfig config = embedded_config(1, 0);
  config.speculative.method = "ngram";
  config.speculative.prompt_lookup_min = 1;
  config.speculative.num_speculative_tokens = 4;
  const std::vector<Outcome> outcomes = run_asks(config, asks);
  EXPECT_EQ(tokens_of(outcomes), expected);
  EXPECT_GT(num_accepted(outcomes), 0);
}

TEST(SameTextOneRank, EverySamplerOption) {
  std::vector<Ask> asks = asks_with([](size_t i) {
    SamplingParams params = seeded(0.9f, 50 + i, 40);
    if (i == 0) params.top_k = 5;
    if (i == 1) params.top_p = 0.8f;
    if (i == 2) params.min_p = 0.1f;
    if (i == 3) params.repetition_penalty = 1.3f;
    if (i == 4) params.presence_penalty = 1.0f;
    if (i == 5) params.frequency_penalty = 0.7f;
    if (i == 6) params.logit_bias = {{300, 4.0f}, {310, -100.0f}};
    if (i == 7)
      params.top_k = 40, params.top_p = 0.9f, params.min_p = 0.02f,
      params.repetition_penalty = 1.1f;
    return params;
  });
  for (size_t i = 0; i < 4; ++i) {
    Ask ask = asks[i];
    ask.params = seeded(0.9f, 70 + i, 40);
    ask.params.typical_p = i == 0 ? 0.4f : 1.0f;
    if (i == 1) ask.params.bad_words = {{300}, {301, 302}, {290}};
    for (int32_t id = 0; i >= 2 && id < 3000; id += i == 2 ? 3 : 2) {
      ask.params.allowed_token_ids.push_back(id);
    }
    if (i == 3) ask.params.top_p = 0.9f, ask.params.typical_p = 0.9f;
    asks.push_back(std::move(ask));
  }
  for (Ask& ask : std::vector<Ask>(asks)) {
    ask.params.temperature = 0;
    asks.push_back(ask);
  }
  const auto expected = run_alone(embedded_config(1, 0), asks);
  EXPECT_EQ(tokens_of(run_asks(embedded_config(1, 5), asks)), expected);
  RunConfig strict = embedded_config(2, 5);
  strict.numerics = "strict";
  RunConfig alone = embedded_config(1, 0);
  alone.numerics = "strict";
  EXPECT_EQ(tokens_of(run_asks(strict, asks)), run_alone(alone, asks));
}

// So little KV memory that sequences are preempted again and again, and so small a budget that
// prompts come in chunks: no token may change.
TEST(SameTextOneRank, PreemptionAndChunkedPrefill) {
  const std::vector<Ask> asks =
      asks_with([](size_t i) { return i % 2 == 0 ? greedy(120) : seeded(0.8f, i, 120); });
  const auto expected = run_alone(embedded_config(1, 0), asks);
  for (int draft_len : {0, 4}) {
    RunConfig config = embedded_config(1, draft_len);
    config.max_model_len = 192;
    config.block_size = 4;
    config.max_num_batched_tokens = 16;
    limit_kv_blocks(config, 100);  // 400 tokens for 8 x 150
    double num_preemptions = 0;
    std::vector<Outcome> outcomes;
    run_engine(config, [&](const FrontEndContext& context) {
      outcomes = ask_all(context, asks);
      num_preemptions = context.metrics.num_preemptions.value();
    });
    EXPECT_EQ(tokens_of(outcomes), expected) << "draft_len " << draft_len;
    EXPECT_GT(num_preemptions, 0);
  }
}

TEST(SameTextOneRank, LogprobsWithAndWithoutDraft) {
  const std::vector<Ask> asks = asks_with([](size_t) {
    SamplingParams params = greedy(24);
    params.num_logprobs = 5;
    params.prompt_logprobs = true;
    return params;
  });
  const std::vector<Outcome> off = run_asks(embedded_config(2, 0), asks);
  const std::vector<Outcome> on = run_asks(embedded_config(2, 4), asks);
  ASSERT_EQ(off.size(), on.size());
  const auto expect_equal = [](const std::vector<TokenLogprobs>& a,
                               const std::vector<TokenLogprobs>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].logprob, b[i].logprob);
      EXPECT_EQ(a[i].rank, b[i].rank);
      EXPECT_EQ(a[i].top, b[i].top);
      EXPECT_EQ(a[i].top.size(), 5u);
      EXPECT_LE(a[i].logprob, 0.0f);
    }
  };
  for (size_t i = 0; i < off.size(); ++i) {
    EXPECT_EQ(off[i].logprobs.size(), off[i].tokens.size());
    EXPECT_GT(off[i].prompt_logprobs.size() + (kPrompts[i].size() < 2 ? 1 : 0), 0u);
    expect_equal(off[i].logprobs, on[i].logprobs);
    expect_equal(off[i].prompt_logprobs, on[i].prompt_logprobs);
  }
}

}  // namespace
}  // namespace outrider::test
