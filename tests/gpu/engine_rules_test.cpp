// Whole jobs on a GPU under every rule of verification: what is sampled there, with drafts that
// come for every round, is what the CPU samples from the same noise: tokens, where each came from,
// and log-probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/gpu/job_case.h"

namespace outrider::test {
namespace {

constexpr int kDraftLen = 3;

class GpuRules : public GpuJobs, public ::testing::WithParamInterface<VerifyMode> {};

// The text of standard and block depends on the drafts, so every round gets a whole one.
RunConfig config_of(int num_targets, const std::string& device) {
  RunConfig config = small_config(num_targets, kDraftLen, device);
  config.max_num_seqs = 1;
  config.speculative.async_drafting = "off";
  config.speculative.draft_patience_s = 100;
  return config;
}

std::vector<Ask> asks(VerifyMode mode) {
  SamplingParams plain = seeded(1.0f, 5, 9);
  SamplingParams filtered = seeded(0.9f, 11, 9);
  filtered.top_p = 0.9f;
  filtered.min_p = 0.01f;
  filtered.num_logprobs = 2;
  SamplingParams edited = seeded(1.1f, 23, 9);
  edited.top_k = 20;
  edited.repetition_penalty = 1.3f;
  edited.presence_penalty = 0.5f;
  edited.frequency_penalty = 0.25f;
  edited.num_logprobs = 3;
  edited.prompt_logprobs = true;
  std::vector<Ask> all = {{"Once upon a time there was", plain},
                          {"The king said", filtered},
                          {"In the forest", edited}};
  for (Ask& ask : all) ask.params.verify_mode = mode;
  return all;
}

// Float sums have one order on CPU and GPU only where the shapes allow it.
void expect_near(const std::vector<TokenLogprobs>& found,
                 const std::vector<TokenLogprobs>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(std::abs(found[i].logprob - expected[i].logprob) <= 1e-4);
    ASSERT_EQ(found[i].top.size(), expected[i].top.size());
    for (size_t j = 0; j < found[i].top.size(); ++j) {
      EXPECT_EQ(found[i].top[j].first, expected[i].top[j].first);
    }
  }
}

TEST_P(GpuRules, SampleWhatTheCpuSamples) {
  const std::vector<Outcome> expected = run_asks(config_of(1, "cpu"), asks(GetParam()));
  ASSERT_EQ(expected.size(), 3u);
  int64_t num_accepted = 0;
  int64_t num_corrected = 0;
  for (const Outcome& outcome : expected) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.tokens.size(), 9u);
    num_accepted += std::ranges::count(outcome.origins, TokenOrigin::kAccepted);
    num_corrected += std::ranges::count(outcome.origins, TokenOrigin::kCorrected);
  }
  EXPECT_GT(num_accepted, 3);
  EXPECT_GE(num_corrected, 2);
  const gpu::LateWork late;
  for (const int num_targets : {1, 2}) {
    const std::vector<Outcome> found = run_asks(config_of(num_targets, "cuda"), asks(GetParam()));
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(found[i].error, "");
      EXPECT_EQ(found[i].tokens, expected[i].tokens) << num_targets << " ranks, request " << i;
      EXPECT_EQ(found[i].origins, expected[i].origins) << num_targets << " ranks, request " << i;
      expect_near(found[i].logprobs, expected[i].logprobs);
      expect_near(found[i].prompt_logprobs, expected[i].prompt_logprobs);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         GpuRules,
                         ::testing::Values(VerifyMode::kStandard,
                                           VerifyMode::kBlock,
                                           VerifyMode::kCoupled));

}  // namespace
}  // namespace outrider::test
