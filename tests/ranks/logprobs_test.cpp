// Log-probabilities of whole jobs: those of the target's raw distribution at every position of
// prompt and output, whatever sampler, rule or draft made the text, and the same bits with
// speculation on and off. The raw distribution is computed directly, by the model alone
// (ModelProbe).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ranks/loading/model_probe.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

constexpr int32_t kNumTop = 5;

const std::vector<std::string> kPrompts = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door",
    "The old woman went into the forest to gather wood, and",
    "My dear Watson,",
    "The soldiers had been marching since the morning. The officer looked at the sky and said that "
    "it would rain before they came to the river, and that nobody was to take off his boots.",
    "A",
    "In the garden stood a tree that bore golden apples, and every night one of the apples was "
    "stolen.",
    "\"What is it?\" asked Natasha. <|end|><|user|>\u00e9\U0001F642",
};

// Seeded, so coupled; every sampler option that changes what is drawn.
std::vector<Ask> seeded_asks(int32_t max_tokens) {
  std::vector<Ask> asks;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    SamplingParams params = seeded(i == 7 ? 1.5f : 0.9f, 70 + i, max_tokens);
    if (i == 0) params.top_k = 5;
    if (i == 1) params.top_p = 0.8f;
    if (i == 2) params.min_p = 0.05f;
    if (i == 3) params.repetition_penalty = 1.3f;
    if (i == 4) params.presence_penalty = 1.0f, params.frequency_penalty = 0.7f;
    if (i == 5) params.logit_bias = {{300, 6.0f}, {310, -100.0f}};
    if (i == 6) {
      params.top_k = 40, params.top_p = 0.9f, params.min_p = 0.01f;
      params.repetition_penalty = 1.1f;
    }
    params.num_logprobs = kNumTop;
    params.prompt_logprobs = true;
    asks.push_back({kPrompts[i], params});
  }
  return asks;
}

void expect_same_bits(const std::vector<TokenLogprobs>& got,
                      const std::vector<TokenLogprobs>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].logprob, expected[i].logprob) << "position " << i;
    EXPECT_EQ(got[i].rank, expected[i].rank) << "position " << i;
    EXPECT_EQ(got[i].top, expected[i].top) << "position " << i;
  }
}

void expect_same_bits(const std::vector<Outcome>& got, const std::vector<Outcome>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    EXPECT_EQ(got[i].error, "");
    EXPECT_EQ(got[i].tokens, expected[i].tokens);
    EXPECT_EQ(got[i].logprobs.size(), got[i].tokens.size());
    expect_same_bits(got[i].logprobs, expected[i].logprobs);
    expect_same_bits(got[i].prompt_logprobs, expected[i].prompt_logprobs);
  }
}

// What the engine said of `token` against softmax of the logits before it. The engine's number is a
// float: half a step of it is 1e-6 at 16.
void expect_direct(const TokenLogprobs& got, int32_t token, const std::vector<double>& probs) {
  const auto prob_of = [&](int32_t id) { return probs[static_cast<size_t>(id)]; };
  EXPECT_LE(std::abs(got.logprob - std::log(prob_of(token))), 1e-6);
  int32_t rank = 1;
  for (size_t id = 0; id < probs.size(); ++id) {
    const bool before = probs[id] > prob_of(token) ||
                        (probs[id] == prob_of(token) && id < static_cast<size_t>(token));
    rank += before ? 1 : 0;
  }
  EXPECT_EQ(got.rank, rank);
  ASSERT_EQ(got.top.size(), static_cast<size_t>(kNumTop));
  for (size_t n = 0; n < got.top.size(); ++n) {
    const auto& [id, logprob] = got.top[n];
    EXPECT_LE(std::abs(logprob - std::log(prob_of(id))), 1e-6);
    if (n > 0) {
      EXPECT_LE(logprob, got.top[n - 1].second);
    }
    if (static_cast<int32_t>(n) + 1 == rank) {
      EXPECT_EQ(id, token);
    }
  }
  EXPECT_LE(*std::max_element(probs.begin(), probs.end()), prob_of(got.top.front().first));
}

// Every position of prompt and output of one rank's job.
void expect_direct(const std::vector<Ask>& asks, const std::vector<Outcome>& outcomes) {
  const RunConfig config = embedded_config(1, 4);
  ModelProbe probe(config, Role::kTarget);
  const auto tokenizer =
      Tokenizer::load(std::string(OUTRIDER_SOURCE_DIR) + "/models/embedded/target");
  ASSERT_EQ(outcomes.size(), asks.size());
  size_t num_not_likeliest = 0;
  for (size_t n = 0; n < asks.size(); ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    const Outcome& outcome = outcomes[n];
    std::vector<int32_t> tokens = tokenizer->encode(asks[n].prompt);
    const size_t prompt_size = tokens.size();
    tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
    const auto probs = probe.next_token_probs(tokens);
    ASSERT_EQ(outcome.prompt_logprobs.size(), prompt_size - 1);
    ASSERT_EQ(outcome.logprobs.size(), outcome.tokens.size());
    for (size_t i = 1; i < tokens.size(); ++i) {
      const TokenLogprobs& got =
          i < prompt_size ? outcome.prompt_logprobs[i - 1] : outcome.logprobs[i - prompt_size];
      expect_direct(got, tokens[i], probs[i - 1]);
      num_not_likeliest += i >= prompt_size && got.rank > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(num_not_likeliest, 20u);  // else this were greedy text again
}

TEST(Logprobs, SeededSamplersWithAndWithoutDraft) {
  const std::vector<Ask> asks = seeded_asks(40);
  for (int num_targets : {1, 2}) {
    SCOPED_TRACE(std::to_string(num_targets) + " target ranks");
    const std::vector<Outcome> off = run_asks(embedded_config(num_targets, 0), asks);
    for (int draft_len : {1, 4}) {
      const std::vector<Outcome> on =
          run_asks(patient(embedded_config(num_targets, draft_len)), asks);
      EXPECT_GT(num_accepted(on), 0);
      expect_same_bits(on, off);
    }
    if (num_targets == 1) expect_direct(asks, off);
  }
}

TEST(Logprobs, StrictIsTheSameOnAnyNumberOfRanks) {
  const std::vector<Ask> asks = seeded_asks(32);
  const auto strict = [](int num_targets, int draft_len) {
    RunConfig config = embedded_config(num_targets, draft_len);
    config.numerics = "strict";
    return config;
  };
  const std::vector<Outcome> expected = run_asks(strict(1, 0), asks);
  for (int num_targets : {2, 4}) {
    SCOPED_TRACE(std::to_string(num_targets) + " target ranks");
    expect_same_bits(run_asks(strict(num_targets, 4), asks), expected);
  }
}

TEST(Logprobs, NgramDraft) {
  const std::vector<Ask> asks = seeded_asks(40);
  RunConfig config = embedded_config(1, 0);
  const std::vector<Outcome> off = run_asks(config, asks);
  config.speculative.method = "ngram";
  config.speculative.prompt_lookup_min = 1;
  expect_same_bits(run_asks(config, asks), off);
}

// Without a seed the text is another each time; its log-probabilities are the model's all the same.
TEST(Logprobs, UnseededRulesAgreeWithTheModel) {
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    SCOPED_TRACE("mode " + std::to_string(static_cast<int>(mode)));
    std::vector<Ask> asks = seeded_asks(32);
    for (Ask& ask : asks) {
      ask.params.seed.reset();
      ask.params.verify_mode = mode;
    }
    const std::vector<Outcome> outcomes = run_asks(patient(embedded_config(1, 4)), asks);
    EXPECT_GT(num_accepted(outcomes), 0);
    expect_direct(asks, outcomes);
  }
}

// Prompts in chunks of at most 16 rows, and sequences that lose their KV and are computed again:
// nothing is scored twice, nothing is left out.
TEST(Logprobs, ChunksAndPreemption) {
  const std::vector<Ask> asks = seeded_asks(120);
  const std::vector<Outcome> expected = run_asks(embedded_config(1, 0), asks);
  expect_direct(asks, expected);
  for (int draft_len : {0, 4}) {
    SCOPED_TRACE("draft_len " + std::to_string(draft_len));
    RunConfig config = embedded_config(1, draft_len);
    config.max_model_len = 192;
    config.block_size = 4;
    config.max_num_batched_tokens = 16;
    limit_kv_blocks(config, 100);
    std::vector<Outcome> outcomes;
    double num_preemptions = 0;
    run_engine(config, [&](const FrontEndContext& context) {
      outcomes = ask_all(context, asks);
      num_preemptions = context.metrics.num_preemptions.value();
    });
    EXPECT_GT(num_preemptions, 0);
    expect_same_bits(outcomes, expected);
  }
}

// max_tokens 0: the prompt's scores and nothing else, the same as when text follows.
TEST(Logprobs, ScoringWithoutOutput) {
  std::vector<Ask> asks = seeded_asks(8);
  const std::vector<Outcome> with_text = run_asks(embedded_config(1, 4), asks);
  for (Ask& ask : asks) ask.params.max_tokens = 0;
  for (int draft_len : {0, 4}) {
    RunConfig config = embedded_config(1, draft_len);
    config.max_num_batched_tokens = 16;
    const std::vector<Outcome> scored = run_asks(config, asks);
    ASSERT_EQ(scored.size(), with_text.size());
    for (size_t i = 0; i < scored.size(); ++i) {
      EXPECT_EQ(scored[i].error, "");
      EXPECT_EQ(scored[i].finish_reason, FinishReason::kLength);
      EXPECT_TRUE(scored[i].tokens.empty());
      expect_same_bits(scored[i].prompt_logprobs, with_text[i].prompt_logprobs);
    }
  }
}

// A stop token is not part of the text but has the log-probability it would have had in it.
TEST(Logprobs, OfTheStopToken) {
  constexpr size_t kStopAt = 7;
  std::vector<Ask> asks = seeded_asks(16);
  const std::vector<Outcome> whole = run_asks(embedded_config(1, 0), asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].params.stop_token_ids = {whole[i].tokens[kStopAt]};
  }
  for (int draft_len : {0, 4}) {
    const std::vector<Outcome> stopped = run_asks(embedded_config(1, draft_len), asks);
    for (size_t i = 0; i < stopped.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      const size_t at = stopped[i].tokens.size();
      EXPECT_LE(at, kStopAt);
      EXPECT_EQ(stopped[i].finish_reason, FinishReason::kStop);
      ASSERT_TRUE(stopped[i].stop_token_logprobs);
      expect_same_bits({*stopped[i].stop_token_logprobs}, {whole[i].logprobs[at]});
    }
  }
}

}  // namespace
}  // namespace outrider::test
