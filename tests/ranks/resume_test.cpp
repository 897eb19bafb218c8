// Answers that go on behind tokens generated before: greedy and seeded text as it would have been,
// unseeded text by the target's law, whoever drafts and however many ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::string kPrompt = "The king said to his daughter:";
constexpr int32_t kMaxTokens = 60;

std::vector<SamplingParams> ways() {
  SamplingParams penalised = seeded(1.0f, 7, kMaxTokens);
  penalised.frequency_penalty = 0.7f;
  penalised.presence_penalty = 0.3f;
  penalised.repetition_penalty = 1.1f;
  SamplingParams filtered = seeded(0.9f, 8, kMaxTokens);
  filtered.top_k = 20;
  filtered.top_p = 0.9f;
  filtered.min_tokens = 40;
  filtered.stop_token_ids = {0};
  return {greedy(kMaxTokens), seeded(1.0f, 3, kMaxTokens), penalised, filtered};
}

std::vector<int32_t> part(const std::vector<int32_t>& tokens, size_t begin, size_t end) {
  return {tokens.begin() + static_cast<ptrdiff_t>(begin),
          tokens.begin() + static_cast<ptrdiff_t>(end)};
}

TEST(Resume, GreedyAndSeededTextGoesOnAsItWouldHave) {
  std::vector<Ask> asks;
  for (const SamplingParams& params : ways()) asks.push_back({kPrompt, params});
  const std::vector<Outcome> whole = run_asks(embedded_config(1, 4), asks);
  std::vector<Ask> resumed;
  std::vector<std::vector<int32_t>> rest;
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_GT(whole[i].tokens.size(), 40u);
    for (const size_t cut : {size_t{1}, size_t{17}, whole[i].tokens.size() - 1}) {
      resumed.push_back({kPrompt, asks[i].params, part(whole[i].tokens, 0, cut)});
      rest.push_back(part(whole[i].tokens, cut, whole[i].tokens.size()));
    }
  }
  for (const RunConfig& config :
       {embedded_config(1, 0), embedded_config(1, 4), embedded_config(2, 4)}) {
    const std::vector<Outcome> outcomes = run_asks(config, resumed);
    ASSERT_EQ(outcomes.size(), rest.size());
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(outcomes[i].tokens, rest[i]) << i;
      EXPECT_EQ(outcomes[i].finish_reason, whole[i / 3].finish_reason) << i;
    }
  }
}

TEST(Resume, UnseededTextGoesOnByTheTargetsLaw) {
  constexpr size_t kNumSamples = 4000;
  const RunConfig config = embedded_config(2, 3);
  const std::vector<int32_t> begun = run_asks(config, {{kPrompt, greedy(5)}})[0].tokens;
  SamplingParams scored = greedy(6);
  scored.num_logprobs = 20;
  const Outcome next = run_asks(config, {{kPrompt, scored, begun}})[0];
  ASSERT_EQ(next.logprobs.size(), 1u);
  // A second token, so that the first may come with a draft behind it.
  const std::vector<Ask> asks(kNumSamples, {kPrompt, sampled(1.0f, 8), begun});
  std::map<int32_t, size_t> counts;
  RunConfig many = config;
  many.max_num_queued_reqs = static_cast<int32_t>(kNumSamples);
  for (const Outcome& outcome : run_asks(many, asks)) ++counts[outcome.tokens.at(0)];
  double seen = 0;
  for (const auto& [token, logprob] : next.logprobs[0].top) {
    const double probability = std::exp(logprob);
    const double deviation = std::sqrt(kNumSamples * probability * (1 - probability));
    const double off = static_cast<double>(counts[token]) - kNumSamples * probability;
    EXPECT_TRUE(std::abs(off) <= 4.5 * deviation)
        << "token " << token << ": " << counts[token] << " of " << kNumSamples * probability;
    seen += probability;
  }
  EXPECT_GT(seen, 0.5) << "the listed tokens say little";
}

TEST(Resume, AnAnswerThatIsWholeAlreadyIsRefused) {
  run_engine(embedded_config(1, 0), [](const FrontEndContext& context) {
    Request request;
    request.id = context.engine.next_request_id();
    request.prompt = {5, 6};
    request.resumed = {7, 8};
    request.params = greedy(2);
    request.stream = std::make_shared<ResultStream>();
    EXPECT_EQ(context.engine.submit(std::move(request)).reason,
              "max_tokens is 2, and 2 tokens are there already");
  });
}

}  // namespace
}  // namespace outrider::test
