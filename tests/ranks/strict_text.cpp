// See strict_text.h.
#include "tests/ranks/strict_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace outrider::test {
namespace {

const std::vector<std::string> kOpenings = {
    "Once upon a time there was a king who",
    "It was late in the evening when the stranger",
    "The old woman went into the forest and",
    "My dear Watson, the man",
    "The soldiers had been marching since the morning, and the officer",
    "In the garden stood a tree under which a girl",
    "\"What is it?\" asked Natasha, and the count",
    "On the third day the ship",
    "Nobody in the village knew why the miller",
    "A",
    "There was once a poor man whose youngest son",
    "The prince looked at the letter, and his servant",
    "When the snow had melted, the wolf",
    "He rose from the table;",
};

const std::vector<std::string> kContinuations = {
    " had three sons.",
    " knocked at the door",
    " said to her,",
    " was nowhere to be seen. And",
    " looked at the sky and said",
    " went away without a word, because",
    " cried, \"Come",
    " took the golden apple",
    " did not answer;",
    " had lost",
    " ran down to the river, where",
    " would not believe it, and the next morning",
    " saw a light",
    " laughed.",
    " laughed and laughed and laughed and",
    " was called Peter.",
    " sat down by the fire and began to tell how the war",
    " had never",
    ", who was very old,",
    " came to a great castle. The castle",
    " spoke in French,",
};

SamplingParams params_of(size_t i, int32_t max_tokens) {
  if (i % 4 == 0) return greedy(max_tokens);
  const float temperatures[] = {0.4f, 0.8f, 1.0f, 1.4f, 0.7f};
  SamplingParams params = seeded(temperatures[i % 5], 7000 + 13 * i, max_tokens);
  if (i % 11 == 1) params.top_k = 5;
  if (i % 11 == 2) params.top_p = 0.8f;
  if (i % 11 == 3) params.min_p = 0.05f;
  if (i % 11 == 4) params.repetition_penalty = 1.3f;
  if (i % 11 == 5) params.presence_penalty = 0.8f;
  if (i % 11 == 6) params.frequency_penalty = 0.7f;
  if (i % 11 == 7) params.logit_bias = {{300, 3.0f}, {310, -100.0f}};
  if (i % 11 == 8) params.top_k = 40, params.top_p = 0.9f;
  return params;
}

// What a run adds to the options of the test pair.
RunConfig config_of(const StrictRun& run) {
  RunConfig config = patient(embedded_config(run.num_targets, run.draft_len));
  config.numerics = run.numerics;
  config.max_num_seqs = run.max_num_seqs;
  config.max_num_queued_reqs = 100000;
  if (!run.method.empty()) {
    config.speculative.method = run.method;
    config.speculative.model.clear();
    config.speculative.prompt_lookup_min = 1;
  }
  if (run.tight) {
    config.max_model_len = 128;
    config.block_size = 4;
    config.max_num_batched_tokens = 24;
    limit_kv_blocks(config, 60);
  }
  return config;
}

}  // namespace

std::string StrictRun::name() const {
  return fmt::format("{}, {} targets, {} {}, {} in flight{}",
                     numerics,
                     num_targets,
                     method.empty() ? "draft of" : method + " of",
                     draft_len,
                     max_num_seqs,
                     tight ? ", little memory" : "");
}

std::vector<Ask> strict_asks(size_t count, int32_t max_tokens) {
  std::vector<Ask> asks;
  EXPECT_LE(count, kOpenings.size() * kContinuations.size());
  for (size_t i = 0; i < count; ++i) {
    // 14 and 21 are not coprime: the second index moves on by one more after each round of both.
    const size_t continuation = (i + i / 42) % kContinuations.size();
    Ask ask{kOpenings[i % kOpenings.size()] + kContinuations[continuation],
            params_of(i, max_tokens)};
    if (i % 3 == 0) ask.params.num_logprobs = 3;
    if (i % 6 == 0) ask.params.prompt_logprobs = true;
    asks.push_back(std::move(ask));
  }
  return asks;
}

std::vector<Outcome> run_strict(const StrictRun& run, const std::vector<Ask>& asks) {
  std::vector<size_t> order(asks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(),
               order.end(),
               std::mt19937(static_cast<uint32_t>(run.num_targets * 100 + run.draft_len)));
  std::vector<Outcome> outcomes(asks.size());
  double num_preemptions = 0;
  run_engine(config_of(run), [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams(asks.size());
    for (const size_t i : order) {
      streams[i] =
          submit(context.engine, context.tokenizer->encode(asks[i].prompt), asks[i].params);
      ASSERT_NE(streams[i], nullptr);
    }
    for (const size_t i : order) outcomes[i] = collect(*streams[i]);
    num_preemptions = context.metrics.num_preemptions.value();
  });
  int64_t num_accepted = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "") << run.name();
    num_accepted += outcome.stats.num_accepted_tokens;
  }
  EXPECT_EQ(num_accepted > 0, run.draft_len > 0) << run.name();
  EXPECT_EQ(num_preemptions > 0, run.tight) << run.name();
  return outcomes;
}

bool same_outcome(const Outcome& a, const Outcome& b) {
  return a.tokens == b.tokens && a.finish_reason == b.finish_reason &&
         same_logprobs(a.logprobs, b.logprobs) &&
         same_logprobs(a.prompt_logprobs, b.prompt_logprobs);
}

StrictComparison::StrictComparison(std::vector<Ask> asks)
    : asks_(std::move(asks)), expected_(run_strict({.max_num_seqs = 1}, asks_)) {}

void StrictComparison::expect_same(const StrictRun& run, size_t num_asks) {
  if (num_asks == 0) num_asks = asks_.size();
  const std::vector<Ask> asks(asks_.begin(), asks_.begin() + static_cast<std::ptrdiff_t>(num_asks));
  const std::vector<Outcome> outcomes = run_strict(run, asks);
  ASSERT_EQ(outcomes.size(), num_asks);
  for (size_t i = 0; i < num_asks; ++i, ++num_compared_) {
    EXPECT_TRUE(same_outcome(outcomes[i], expected_[i]))
        << run.name() << ": request " << i << ", " << asks[i].prompt;
  }
}

void StrictComparison::report() const {
  std::set<std::vector<int32_t>> texts;
  std::set<int32_t> tokens;
  size_t num_tokens = 0;
  for (const Outcome& outcome : expected_) {
    texts.insert(outcome.tokens);
    tokens.insert(outcome.tokens.begin(), outcome.tokens.end());
    num_tokens += outcome.tokens.size();
  }
  // A small model may write the same greedy text after two prompts, not often.
  EXPECT_GT(texts.size(), expected_.size() * 9 / 10);
  EXPECT_GT(tokens.size(), 200u);
  fmt::print(
      "{} sequences compared with {} expected ones; {} of those differ from each other, "
      "with {} different tokens among {}\n",
      num_compared_,
      expected_.size(),
      texts.size(),
      tokens.size(),
      num_tokens);
}

}  // namespace outrider::test
