// Promise P1 on a real model through the whole path: draft worker, sharded target, verification,
// scheduler. The first three sampled tokens after a prompt follow the target's exact law (top-k 4,
// so that the law has 64 cells), for every rule, and a request judged by a wrong rule would not:
// the control draws at another temperature.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/ranks/model_probe.h"
#include "scheduler/exactness/chi_square.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/other_vocabulary.h"

namespace outrider::test {
namespace {

constexpr const char* kPrompt = "The king said";
constexpr int kTopK = 4;
using Triple = std::array<int32_t, 3>;

// The kTopK likeliest tokens and their renormalised probabilities at this temperature.
std::vector<std::pair<int32_t, double>> top_law(const std::vector<double>& probs,
                                                double temperature) {
  std::vector<std::pair<int32_t, double>> law;
  for (size_t v = 0; v < probs.size(); ++v) law.emplace_back(static_cast<int32_t>(v), probs[v]);
  std::partial_sort(law.begin(), law.begin() + kTopK, law.end(), [](const auto& a, const auto& b) {
    return a.second > b.second;
  });
  law.resize(kTopK);
  double sum = 0;
  for (auto& [token, prob] : law) sum += prob = std::pow(prob, 1 / temperature);
  for (auto& [token, prob] : law) prob /= sum;
  return law;
}

std::map<Triple, double> exact_law(ModelProbe& target,
                                   const std::vector<int32_t>& prompt,
                                   double temperature) {
  std::map<Triple, double> law;
  std::vector<int32_t> tokens = prompt;
  for (const auto& [first, first_prob] :
       top_law(target.next_token_probs(tokens).back(), temperature)) {
    tokens.push_back(first);
    for (const auto& [second, second_prob] :
         top_law(target.next_token_probs(tokens).back(), temperature)) {
      tokens.push_back(second);
      for (const auto& [third, third_prob] :
           top_law(target.next_token_probs(tokens).back(), temperature)) {
        law[{first, second, third}] = first_prob * second_prob * third_prob;
      }
      tokens.pop_back();
    }
    tokens.pop_back();
  }
  return law;
}

struct Sampled {
  std::map<Triple, int64_t> counts;
  int64_t num_accepted = 0;
  int64_t num_rejected = 0;
  int64_t num_proposals = 0;
  int64_t num_accepted_proposals = 0;
};

Sampled sample(RunConfig config,
               const std::vector<int32_t>& prompt,
               VerifyMode mode,
               float temperature,
               int num_samples) {
  Sampled result;
  config.max_num_seqs = 64;
  config.max_model_len = 64;
  config.max_num_queued_reqs = num_samples;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (int i = 0; i < num_samples; ++i) {
      SamplingParams params = sampled(temperature, 4);
      params.top_k = kTopK;
      params.verify_mode = mode;
      streams.push_back(submit(context.engine, prompt, params));
    }
    for (const auto& stream : streams) {
      const Outcome outcome = collect(*stream);
      ASSERT_EQ(outcome.tokens.size(), 4u) << outcome.error;
      ++result.counts[{outcome.tokens[0], outcome.tokens[1], outcome.tokens[2]}];
      result.num_proposals += outcome.stats.num_proposals;
      result.num_accepted_proposals += outcome.stats.num_accepted_proposals;
      for (TokenOrigin origin : outcome.origins) {
        result.num_accepted += origin == TokenOrigin::kAccepted ? 1 : 0;
        result.num_rejected += origin == TokenOrigin::kCorrected ? 1 : 0;
      }
    }
  });
  return result;
}

// Fails the test for a triple outside the law.
ChiSquare compare(const std::map<Triple, double>& law,
                  const std::map<Triple, int64_t>& counts,
                  int num_samples) {
  std::vector<double> probs;
  std::vector<uint64_t> observed;
  uint64_t inside = 0;
  for (const auto& [triple, prob] : law) {
    const auto found = counts.find(triple);
    probs.push_back(prob);
    observed.push_back(static_cast<uint64_t>(found == counts.end() ? 0 : found->second));
    inside += observed.back();
  }
  EXPECT_EQ(inside, static_cast<uint64_t>(num_samples))
      << "a token outside the filtered set was emitted";
  return chi_square(observed, probs);
}

Sampled expect_exact_law(const RunConfig& config, VerifyMode mode, int num_samples) {
  ModelProbe target(embedded_config(1, 3), Role::kTarget);
  const auto tokenizer = Tokenizer::load(model_folder("embedded", Role::kTarget));
  const std::vector<int32_t> prompt = tokenizer->encode(kPrompt);
  const auto law = exact_law(target, prompt, 1.0);
  const Sampled result = sample(config, prompt, mode, 1.0f, num_samples);
  EXPECT_GT(result.num_accepted, 1000);
  EXPECT_GT(result.num_rejected, 1000);
  const ChiSquare good = compare(law, result.counts, num_samples);
  EXPECT_GT(good.degrees, 15);
  // Which rounds had a draft in time varies from run to run, so the draws do: a fifth above
  // the 99.9% quantile leaves a right rule a chance of about 1 in 100,000 to fail here.
  EXPECT_LE(good.statistic, 1.2 * good.limit);
  // The control: the same counts against the law of another temperature must be far outside.
  const ChiSquare control = compare(exact_law(target, prompt, 1.3), result.counts, num_samples);
  EXPECT_GT(control.statistic, 3 * control.limit);
  return result;
}

class ExactLaw : public ::testing::TestWithParam<std::tuple<VerifyMode, int>> {};

TEST_P(ExactLaw, FirstThreeTokens) {
  const auto [mode, num_targets] = GetParam();
  expect_exact_law(embedded_config(num_targets, 3), mode, 20000);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLaw,
                         ::testing::Combine(::testing::Values(VerifyMode::kStandard,
                                                              VerifyMode::kBlock,
                                                              VerifyMode::kCoupled),
                                            ::testing::Values(1, 2)));

class ExactLawRidingAhead
    : public ::testing::TestWithParam<std::tuple<VerifyMode, const char*, int>> {};

// Blocks of one, so that the proposals behind them come among the first three tokens.
TEST_P(ExactLawRidingAhead, FirstThreeTokens) {
  const auto [mode, ride_ahead, num_targets] = GetParam();
  RunConfig config = embedded_config(num_targets, 1);
  config.speculative.ride_ahead = ride_ahead;
  config.speculative.draft_patience_s = 2;  // rounds without a draft say nothing here
  const Sampled result = expect_exact_law(config, mode, 12000);
  EXPECT_GT(result.num_proposals, 1000);
  EXPECT_GT(result.num_accepted_proposals, result.num_proposals / 10);
  EXPECT_LT(result.num_accepted_proposals, result.num_proposals);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawRidingAhead,
                         ::testing::Combine(::testing::Values(VerifyMode::kStandard,
                                                              VerifyMode::kBlock),
                                            ::testing::Values("chain", "cache"),
                                            ::testing::Values(1, 2)));

class ExactLawCounting : public ::testing::TestWithParam<VerifyMode> {};

// A draft that learns from the very samples it is judged in.
TEST_P(ExactLawCounting, FirstThreeTokensWhileTheDraftLearns) {
  RunConfig config = embedded_config(1, 0);
  config.speculative.method = "bigram";
  config.speculative.num_speculative_tokens = 3;
  expect_exact_law(config, GetParam(), 8000);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawCounting,
                         ::testing::Values(VerifyMode::kStandard, VerifyMode::kBlock));

class ExactLawOtherTokenizer : public ::testing::TestWithParam<VerifyMode> {};

// A draft with another tokenizer: it says every token differently and cannot propose some of the
// law's.
TEST_P(ExactLawOtherTokenizer, FirstThreeTokens) {
  const OtherVocabulary other({.rename_every = 5, .rename_end = true, .num_extra_rows = 8});
  const RunConfig config = other.config(1, 3);
  const LoadedModel draft = load_draft(config, {1, true}, 1);
  ModelProbe target(config, Role::kTarget);
  const auto tokenizer = Tokenizer::load(model_folder("embedded", Role::kTarget));
  int num_sayable = 0;
  int num_others = 0;
  for (const auto& [triple, prob] : exact_law(target, tokenizer->encode(kPrompt), 1.0)) {
    for (int32_t token : triple)
      ++(draft.vocabulary->draft_id(token) >= 0 ? num_sayable : num_others);
  }
  EXPECT_GT(num_sayable, 30);
  EXPECT_GT(num_others, 10);
  expect_exact_law(config, GetParam(), 8000);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawOtherTokenizer,
                         ::testing::Values(VerifyMode::kStandard,
                                           VerifyMode::kBlock,
                                           VerifyMode::kCoupled));

}  // namespace
}  // namespace outrider::test
