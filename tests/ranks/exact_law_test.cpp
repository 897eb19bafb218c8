// Promise P1 on a real model through the whole path: draft worker, sharded target, verification,
// scheduler. The first three sampled tokens after a prompt follow the target's exact law (top-k 4,
// so that the law has 64 cells), for every rule, and a request judged by a wrong rule would not:
// the control draws at another temperature. Every way through the program is judged alone, where a
// law off by 0.07 in total variation is found with 99% probability, and all ways of a rule
// together, where 0.04 is.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "models/synthetic/folder.h"
#include "runtime/ranks/loading/model_names.h"
#include "runtime/ranks/loading/model_probe.h"
#include "scheduler/exactness/chi_square.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/other_vocabulary.h"
#include "tests/scheduler/two_looks.h"

namespace outrider::test {
namespace {

constexpr const char* kPrompt = "The king said";
constexpr int kTopK = 4;
// Which rounds have a draft in time varies from run to run, so the draws do: hence two looks.
// Coupled goes fewer ways.
constexpr int num_samples_for(VerifyMode mode) {
  return mode == VerifyMode::kCoupled ? 8000 : 4000;
}
constexpr double kControlTemperature = 1.5;
constexpr double kFoundInOneWay = 0.07;
constexpr double kFoundInAllWays = 0.04;
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
  int64_t num_bonus_drafts = 0;
  int64_t num_accepted_bonus_drafts = 0;
};

Sampled sample(RunConfig config,
               const std::vector<int32_t>& prompt,
               VerifyMode mode,
               float temperature,
               int num_samples) {
  Sampled result;
  config = patient(std::move(config));  // rounds without a draft say nothing here
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
      result.num_bonus_drafts += outcome.stats.num_bonus_drafts;
      result.num_accepted_bonus_drafts += outcome.stats.num_accepted_bonus_drafts;
      for (TokenOrigin origin : outcome.origins) {
        result.num_accepted += origin == TokenOrigin::kAccepted ? 1 : 0;
        result.num_rejected += origin == TokenOrigin::kCorrected ? 1 : 0;
      }
    }
  });
  return result;
}

struct Pooled {
  std::map<Triple, int64_t> counts;
  int num_samples = 0;
};
// What the first looks of all ways drew, by rule. Judged by the last test of this file.
std::map<VerifyMode, Pooled>& all_ways() {
  static std::map<VerifyMode, Pooled> pooled;
  return pooled;
}

// Fails the test for a triple outside the law.
ChiSquare compare(const std::map<Triple, double>& law,
                  const std::map<Triple, int64_t>& counts,
                  int num_samples,
                  const ChiSquareRule& rule) {
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
  return chi_square(observed, probs, rule);
}

struct Prompted {
  explicit Prompted(const RunConfig& config)
      : target(config, Role::kTarget),
        prompt(Tokenizer::load(model_folder(config.model, Role::kTarget))->encode(kPrompt)) {}
  ModelProbe target;
  std::vector<int32_t> prompt;
  std::map<Triple, double> law(double temperature) {
    return exact_law(target, prompt, temperature);
  }
};

Sampled expect_exact_law(const RunConfig& config, VerifyMode mode) {
  Prompted prompted(config);
  const int first_samples = num_samples_for(mode);
  const auto law = prompted.law(1.0);
  const auto look = [&](int num_samples, const ChiSquareRule& rule) {
    Sampled result = sample(config, prompted.prompt, mode, 1.0f, num_samples);
    const ChiSquare test = compare(law, result.counts, num_samples, rule);
    return std::pair(std::move(result), test);
  };
  auto [result, test] = look(first_samples, kFirstLook);
  EXPECT_GT(result.num_accepted, first_samples / 20);
  EXPECT_GT(result.num_rejected, first_samples / 20);
  EXPECT_GT(test.degrees, 15);
  EXPECT_LE(smallest_found_distance(test, first_samples), kFoundInOneWay);
  if (config.model == "embedded") {  // of one law
    Pooled& pooled = all_ways()[mode];
    for (const auto& [triple, count] : result.counts) pooled.counts[triple] += count;
    pooled.num_samples += first_samples;
  }
  // The control: the same counts against the law of another temperature must be far outside.
  const ChiSquare control =
      compare(prompted.law(kControlTemperature), result.counts, first_samples, kSecondLook);
  EXPECT_GT(control.statistic, 2 * control.limit);
  fmt::print(
      "chi-square {:.1f} (limit {:.1f}, df {}), {:.3f} would be found; control {:.1f}; {} tokens "
      "accepted, {} rejected\n",
      test.statistic,
      test.limit,
      test.degrees,
      smallest_found_distance(test, first_samples),
      control.statistic,
      result.num_accepted,
      result.num_rejected);
  if (!test.fits()) test = look(first_samples * kSecondLookFactor, kSecondLook).second;
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " in the second look";
  return std::move(result);
}

class ExactLaw : public ::testing::TestWithParam<std::tuple<VerifyMode, int>> {};

TEST_P(ExactLaw, FirstThreeTokens) {
  const auto [mode, num_targets] = GetParam();
  expect_exact_law(embedded_config(num_targets, 3), mode);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLaw,
                         ::testing::Combine(::testing::Values(VerifyMode::kStandard,
                                                              VerifyMode::kBlock,
                                                              VerifyMode::kCoupled),
                                            ::testing::Values(1, 2)));

class ExactLawAsyncDrafting
    : public ::testing::TestWithParam<std::tuple<VerifyMode, const char*, int>> {};

// Blocks of one, so that the bonus draft tokens behind them come among the first three tokens.
TEST_P(ExactLawAsyncDrafting, FirstThreeTokens) {
  const auto [mode, async_drafting, num_targets] = GetParam();
  RunConfig config = embedded_config(num_targets, 1);
  config.speculative.async_drafting = async_drafting;
  const Sampled result = expect_exact_law(config, mode);
  EXPECT_GT(result.num_bonus_drafts, num_samples_for(mode) / 12);
  EXPECT_GT(result.num_accepted_bonus_drafts, result.num_bonus_drafts / 10);
  EXPECT_LT(result.num_accepted_bonus_drafts, result.num_bonus_drafts);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawAsyncDrafting,
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
  expect_exact_law(config, GetParam());
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
  expect_exact_law(config, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawOtherTokenizer,
                         ::testing::Values(VerifyMode::kStandard,
                                           VerifyMode::kBlock,
                                           VerifyMode::kCoupled));

// A target with experts and the dense model that its first layers are: two families, one
// tokenizer.
class PairWithExperts {
 public:
  PairWithExperts()
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("outrider-law-{}", ::getpid())) {
    ModelConfig target = first_layers(synthetic_shape("qwen3-30b-a3b"), 4);
    target.hidden_dim = 64;
    target.n_heads = 4;
    target.n_kv_heads = 2;
    target.head_dim = target.rope.rotary_dim = 16;
    target.ffn_dim = 96;
    target.vocab_size = 600;
    target.experts.count = 8;
    target.experts.per_row = 2;
    target.experts.ffn_dim = 40;
    const SyntheticRecipe recipe = {.epsilon = 0.2};
    write_synthetic_folder(folder_ / "target", target, recipe);
    write_synthetic_folder(folder_ / "draft", first_layers(target, 2), recipe);
  }
  ~PairWithExperts() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  PairWithExperts(const PairWithExperts&) = delete;
  PairWithExperts& operator=(const PairWithExperts&) = delete;

  RunConfig config(int num_targets, int draft_len) const {
    RunConfig config = embedded_config(num_targets, draft_len);
    config.model = folder_ / "target";
    config.speculative.model = folder_ / "draft";
    return config;
  }

 private:
  std::filesystem::path folder_;
};

class ExactLawExperts : public ::testing::TestWithParam<std::tuple<VerifyMode, int>> {};

TEST_P(ExactLawExperts, FirstThreeTokens) {
  const PairWithExperts pair;
  const auto [mode, num_targets] = GetParam();
  expect_exact_law(pair.config(num_targets, 3), mode);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawExperts,
                         ::testing::Combine(::testing::Values(VerifyMode::kStandard,
                                                              VerifyMode::kBlock),
                                            ::testing::Values(1, 2)));

class ExactLawOfAllWays : public ::testing::TestWithParam<VerifyMode> {};

// After all others. What a rule does wrong in every way shows here first. One look: new samples
// would be those of everything above.
TEST_P(ExactLawOfAllWays, FirstThreeTokens) {
  const Pooled& pooled = all_ways()[GetParam()];
  if (pooled.num_samples == 0) GTEST_SKIP() << "nothing was drawn: run without a filter";
  Prompted prompted(embedded_config(1, 3));
  const ChiSquareRule rule{1e-9, kSecondLook.least_expected};
  const ChiSquare test = compare(prompted.law(1.0), pooled.counts, pooled.num_samples, rule);
  const double found = smallest_found_distance(test, pooled.num_samples);
  fmt::print("chi-square {:.1f} (limit {:.1f}, df {}) of {} samples; {:.3f} would be found\n",
             test.statistic,
             test.limit,
             test.degrees,
             pooled.num_samples,
             found);
  EXPECT_TRUE(test.fits());
  EXPECT_LE(found, kFoundInAllWays);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         ExactLawOfAllWays,
                         ::testing::Values(VerifyMode::kStandard,
                                           VerifyMode::kBlock,
                                           VerifyMode::kCoupled));

}  // namespace
}  // namespace outrider::test
