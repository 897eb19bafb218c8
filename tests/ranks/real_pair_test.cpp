// A pair nobody on the team made (stories260K with draft llama2xs, when the data folder is there):
// its known greedy tokens, and the counted acceptance beside the mean of sum min(target, draft).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "runtime/ranks/loading/model_probe.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

RunConfig stories_config(int num_targets, int draft_len) {
  RunConfig config = patient(embedded_config(num_targets, draft_len));
  config.model = data_folder() + "/models/stories260K";
  if (draft_len > 0) config.speculative.model = data_folder() + "/models/llama2xs";
  return config;
}

class RealPair : public ::testing::Test {
 protected:
  void SetUp() override {
    if (data_folder().empty()) GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  }
};

TEST_F(RealPair, KnownGreedyTokens) {
  std::ifstream file(data_folder() + "/models/stories260K/greedy200.ids.txt");
  std::vector<int32_t> expected;
  for (int32_t id; file >> id;) expected.push_back(id);
  ASSERT_GE(expected.size(), 200u);
  for (int draft_len : {0, 1, 4, 8}) {
    std::vector<Outcome> outcomes;
    run_engine(stories_config(draft_len == 4 ? 2 : 1, draft_len),
               [&](const FrontEndContext& context) {
                 SamplingParams params = greedy(200);
                 auto stream = submit(context.engine, {1}, params);  // bos alone
                 ASSERT_NE(stream, nullptr);
                 outcomes.push_back(collect(*stream));
               });
    ASSERT_EQ(outcomes.size(), 1u);
    // The file may or may not begin with the bos itself.
    std::vector<int32_t> got = outcomes[0].tokens;
    std::vector<int32_t> known = expected;
    if (known[0] == 1) known.erase(known.begin());
    known.resize(std::min(known.size(), got.size()));
    got.resize(known.size());
    EXPECT_GE(known.size(), 199u);
    EXPECT_EQ(got, known) << "draft_len " << draft_len;
    if (draft_len > 0) {
      EXPECT_GT(outcomes[0].stats.num_accepted_tokens, 10);
    }
  }
}

// With the draft's whole distribution, draft_len 1 and the standard rule, the chance that a draft
// token stands is exactly sum_v min(target_prob, draft_prob) at its position (Leviathan et al.,
// Theorem 3.5).
TEST_F(RealPair, CountedAcceptanceIsSumMin) {
  RunConfig config = stories_config(1, 1);
  config.speculative.num_draft_candidates =
      256;  // half the vocabulary holds all but nothing of the mass
  config.max_num_seqs = 32;
  std::vector<Outcome> outcomes;
  constexpr int kSequences = 96;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (int i = 0; i < kSequences; ++i)
      streams.push_back(submit(context.engine, {1}, sampled(1.0f, 200)));
    for (const auto& stream : streams) outcomes.push_back(collect(*stream));
  });

  ModelProbe target(stories_config(1, 1), Role::kTarget);
  ModelProbe draft(stories_config(1, 1), Role::kDraft);
  double sum_of_minima = 0;
  int64_t num_examined = 0;
  int64_t num_accepted = 0;
  for (const Outcome& outcome : outcomes) {
    std::vector<int32_t> tokens = {1};
    tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
    const auto target_probs = target.next_token_probs(tokens);
    const auto draft_probs = draft.next_token_probs(tokens);
    for (size_t i = 0; i < outcome.tokens.size(); ++i) {
      // A draft was examined at this position when the token was accepted or put in its place.
      const TokenOrigin origin = outcome.origins[i];
      if (origin != TokenOrigin::kAccepted && origin != TokenOrigin::kCorrected) continue;
      ++num_examined;
      num_accepted += origin == TokenOrigin::kAccepted ? 1 : 0;
      for (size_t v = 0; v < target_probs[i].size(); ++v) {
        sum_of_minima += std::min(target_probs[i][v], draft_probs[i][v]);
      }
    }
  }
  ASSERT_GT(num_examined, 6000);
  const double counted = static_cast<double>(num_accepted) / static_cast<double>(num_examined);
  const double expected = sum_of_minima / static_cast<double>(num_examined);
  RecordProperty("counted_acceptance", std::to_string(counted));
  RecordProperty("mean_sum_min", std::to_string(expected));
  std::printf("counted acceptance %.4f, mean of sum min(target, draft) %.4f over %ld positions\n",
              counted,
              expected,
              static_cast<long>(num_examined));
  EXPECT_GT(expected, 0.4);
  EXPECT_LT(expected, 0.9);
  // Six standard deviations of as many fair coins: which positions are examined varies from run to
  // run.
  const double tolerance = 3.0 / std::sqrt(static_cast<double>(num_examined));
  EXPECT_TRUE(std::abs(counted - expected) <= tolerance) << counted << " against " << expected;
}

// What e4m3 weights cost: the chance that a draft token stands, over the same texts for each.
TEST_F(RealPair, AcceptanceWithEightBitWeights) {
  const std::vector<Ask> asks(24, {"Once upon a time", sampled(1.0f, 200)});
  const std::vector<Outcome> outcomes = run_asks(stories_config(1, 0), asks);
  const auto probs_of = [&](Role role, const std::string& quantization) {
    RunConfig config = stories_config(1, 1);
    config.quantization = config.speculative.quantization = quantization;
    ModelProbe probe(config, role);
    std::vector<std::vector<double>> all;
    for (const Outcome& outcome : outcomes) {
      std::vector<int32_t> tokens = {1};
      tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
      for (auto& probs : probe.next_token_probs(tokens)) all.push_back(std::move(probs));
    }
    return all;
  };
  const auto acceptance = [](const auto& a, const auto& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t v = 0; v < a[i].size(); ++v) sum += std::min(a[i][v], b[i][v]);
    }
    return sum / static_cast<double>(a.size());
  };
  const auto target = probs_of(Role::kTarget, "none");
  const auto draft = probs_of(Role::kDraft, "none");
  const auto target8 = probs_of(Role::kTarget, "fp8");
  const auto draft8 = probs_of(Role::kDraft, "fp8");
  ASSERT_GT(target.size(), 3000u);
  const double plain = acceptance(target, draft);
  const double rounded_draft = acceptance(target, draft8);
  const double rounded_target = acceptance(target8, draft);
  const double rounded_pair = acceptance(target8, draft8);
  const double same_target = acceptance(target, target8);
  const double same_draft = acceptance(draft, draft8);
  std::printf(
      "mean of sum min(target, draft) over %zu positions: %.4f, draft in e4m3 %.4f, target %.4f, "
      "both %.4f; target with itself in e4m3 %.4f, draft %.4f\n",
      target.size(),
      plain,
      rounded_draft,
      rounded_target,
      rounded_pair,
      same_target,
      same_draft);
  for (const double found : {rounded_draft, rounded_target, rounded_pair}) {
    EXPECT_NE(found, plain);
    EXPECT_TRUE(std::abs(found - plain) <= 0.02) << found << " against " << plain;
  }
  for (const double found : {same_target, same_draft}) {
    EXPECT_TRUE(found >= 0.9 && found <= 0.999) << found;
  }
}

}  // namespace
}  // namespace outrider::test
