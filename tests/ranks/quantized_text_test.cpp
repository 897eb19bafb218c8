// Promises P2 and P3 with weights in integers: greedy and seeded text is the same with and without
// a draft, target and draft quantised or not, and under numerics strict on any number of ranks.
#include <gtest/gtest.h>

#include <set>

#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::vector<std::string> kPrompts = {
    "Once upon a time there was a king who had three sons.",
    "The old woman went into the forest to gather wood, and",
    "My dear Watson,",
    "The soldiers had been marching since the morning. The officer looked at the sky and said"};

RunConfig config_of(int num_targets, int draft_len, const char* target, const char* draft) {
  RunConfig config = embedded_config(num_targets, draft_len);
  config.quantization = target;
  config.speculative.quantization = draft;
  return config;
}

class QuantizedText : public ::testing::TestWithParam<int> {};  // target ranks

TEST_P(QuantizedText, SameWithAndWithoutDraft) {
  const std::vector<Ask> asks = mixed_asks(kPrompts);
  const auto expected = tokens_of(run_asks(config_of(GetParam(), 0, "int8", "none"), asks));
  EXPECT_EQ(std::set(expected.begin(), expected.end()).size(), asks.size());
  for (const char* draft : {"none", "int8"}) {
    for (const int draft_len : {1, 4, 8}) {
      const auto outcomes =
          run_asks(patient(config_of(GetParam(), draft_len, "int8", draft)), asks);
      EXPECT_EQ(tokens_of(outcomes), expected) << "draft " << draft << ", length " << draft_len;
      EXPECT_GT(num_accepted(outcomes), 0) << "draft " << draft << ", length " << draft_len;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, QuantizedText, ::testing::Values(1, 2));

TEST(QuantizedTextStrict, SameOnAnyNumberOfRanks) {
  const std::vector<Ask> asks = mixed_asks(kPrompts);
  std::vector<std::vector<int32_t>> expected;
  for (const int num_targets : {1, 2, 4}) {
    RunConfig config = config_of(num_targets, num_targets == 2 ? 4 : 0, "int8", "int8");
    config.numerics = "strict";
    const auto tokens = tokens_of(run_asks(config, asks));
    if (expected.empty()) expected = tokens;
    EXPECT_EQ(tokens, expected) << num_targets << " target ranks";
  }
}

// Otherwise the tests above would be about the same weights as ever.
TEST(QuantizedTextStrict, TheWeightsAreOthers) {
  std::vector<Ask> asks = mixed_asks(kPrompts);
  for (Ask& ask : asks) ask.params.num_logprobs = 2;
  const auto rounded = run_asks(config_of(1, 0, "int8", "none"), asks);
  const auto exact = run_asks(config_of(1, 0, "none", "none"), asks);
  EXPECT_NE(rounded[0].logprobs.at(0).logprob, exact[0].logprobs.at(0).logprob);
}

}  // namespace
}  // namespace outrider::test
