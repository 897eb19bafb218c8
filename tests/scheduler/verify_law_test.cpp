// Losslessness, counted: speculative generation through propose() and verify() on sharded logits
// against the exact joint law of the first tokens, and the same test on deliberately broken
// variants, which it must catch.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "scheduler/exactness/law_sampler.h"

namespace outrider {
namespace {

SamplingParams base_params(VerifyMode mode) {
  SamplingParams params;
  params.verify_mode = mode;
  return params;
}

LawCase make_case(const std::string& name,
                  VerifyMode mode,
                  int num_shards,
                  const std::function<void(LawCase&)>& change = {}) {
  LawCase law_case;
  law_case.name = name;
  law_case.params = base_params(mode);
  law_case.shard_counts = {num_shards};
  if (change) change(law_case);
  return law_case;
}

std::vector<LawCase> cases_of(VerifyMode mode) {
  std::vector<LawCase> cases;
  cases.push_back(make_case("no_draft", mode, 2, [](LawCase& c) { c.draft = DraftKind::kNone; }));
  cases.push_back(make_case("plain_solo", mode, 1));
  cases.push_back(make_case("plain_two_shards", mode, 2, [](LawCase& c) { c.vocab_size = 5; }));
  cases.push_back(make_case("plain_four_shards", mode, 4, [](LawCase& c) {
    c.vocab_size = 6;
    c.params.temperature = 1.3f;
  }));
  cases.push_back(make_case("one_token_blocks_of_four", mode, 1, [](LawCase& c) {
    c.draft_len = 1;
    c.num_tokens = 4;
  }));
  cases.push_back(make_case("cold", mode, 1, [](LawCase& c) { c.params.temperature = 0.6f; }));
  cases.push_back(make_case("top_k", mode, 2, [](LawCase& c) { c.params.top_k = 2; }));
  cases.push_back(make_case("top_p", mode, 2, [](LawCase& c) { c.params.top_p = 0.8f; }));
  cases.push_back(make_case("min_p", mode, 1, [](LawCase& c) { c.params.min_p = 0.2f; }));
  cases.push_back(make_case("all_filters", mode, 4, [](LawCase& c) {
    c.vocab_size = 8;
    c.num_tokens = 2;
    c.params.temperature = 1.5f;
    c.params.top_k = 6;
    c.params.top_p = 0.93f;
    c.params.min_p = 0.05f;
  }));
  cases.push_back(make_case("typical_p", mode, 2, [](LawCase& c) {
    c.vocab_size = 5;
    c.params.typical_p = 0.7f;
  }));
  cases.push_back(make_case("typical_p_narrow", mode, 1, [](LawCase& c) {
    c.vocab_size = 8;
    c.num_tokens = 2;
    c.target_spread = 0.5f;  // flat rows: the likeliest tokens are often cut
    c.draft_spread = 0.3f;
    c.params.typical_p = 0.3f;
  }));
  cases.push_back(make_case("all_filters_and_typical_p", mode, 3, [](LawCase& c) {
    c.vocab_size = 8;
    c.num_tokens = 2;
    c.params.temperature = 1.5f;
    c.params.top_k = 7;
    c.params.top_p = 0.97f;
    c.params.min_p = 0.02f;
    c.params.typical_p = 0.8f;
  }));
  cases.push_back(make_case("allowed_token_ids", mode, 2, [](LawCase& c) {
    c.vocab_size = 7;
    c.params.allowed_token_ids = {0, 2, 3, 6};
  }));
  cases.push_back(make_case("bad_words", mode, 2, [](LawCase& c) {
    c.params.bad_words = {{2}, {0, 1}, {1, 3, 3}, {1, 2, 1, 0}};
  }));
  cases.push_back(make_case("masks_and_filters", mode, 2, [](LawCase& c) {
    c.vocab_size = 7;
    c.params.allowed_token_ids = {0, 1, 2, 4, 5};
    c.params.bad_words = {{4}, {0, 1}, {5, 5}};
    c.params.top_p = 0.95f;
    c.params.typical_p = 0.9f;
    c.params.presence_penalty = 0.4f;
  }));
  cases.push_back(make_case("penalties", mode, 2, [](LawCase& c) {
    c.params.repetition_penalty = 1.4f;
    c.params.presence_penalty = 0.7f;
    c.params.frequency_penalty = 0.5f;
  }));
  cases.push_back(make_case("bias_and_min_tokens", mode, 1, [](LawCase& c) {
    c.params.logit_bias = {{0, -1.0f}, {2, 1.5f}};
    c.params.stop_token_ids = {3};
    c.params.min_tokens = 2;
  }));
  cases.push_back(make_case(
      "one_hot_likeliest", mode, 2, [](LawCase& c) { c.draft = DraftKind::kMostLikely; }));
  cases.push_back(
      make_case("one_hot_repeat", mode, 1, [](LawCase& c) { c.draft = DraftKind::kLastRepeated; }));
  cases.push_back(make_case("truncated_draft", mode, 2, [](LawCase& c) { c.num_candidates = 2; }));
  return cases;
}

class LawTest : public ::testing::TestWithParam<LawCase> {};

TEST_P(LawTest, FitsTheExactLaw) {
  const LawResult result = sample_law(GetParam());
  const ChiSquare& test = result.test;
  RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GE(test.degrees, 3);
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " at df " << test.degrees;
  if (GetParam().draft != DraftKind::kNone) {
    // Neither everything nor nothing stood: both branches of the rule were taken.
    const auto accepted = static_cast<double>(result.num_accepted);
    EXPECT_GT(accepted, 0.1 * static_cast<double>(result.num_rounds));
    EXPECT_LT(accepted, 0.97 * static_cast<double>(result.num_drafted));
  }
}

std::string case_name(const ::testing::TestParamInfo<LawCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Standard,
                         LawTest,
                         ::testing::ValuesIn(cases_of(VerifyMode::kStandard)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Block,
                         LawTest,
                         ::testing::ValuesIn(cases_of(VerifyMode::kBlock)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Coupled,
                         LawTest,
                         ::testing::ValuesIn(cases_of(VerifyMode::kCoupled)),
                         case_name);

class NegativeControl : public ::testing::TestWithParam<LawCase> {};

TEST_P(NegativeControl, IsCaughtByAWideMargin) {
  const ChiSquare test = sample_law(GetParam()).test;
  RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GT(test.statistic, 3.0 * test.limit) << "df " << test.degrees;
}

INSTANTIATE_TEST_SUITE_P(
    Broken,
    NegativeControl,
    ::testing::Values(make_case("draft_shares_residual_noise",
                                VerifyMode::kStandard,
                                2,
                                [](LawCase& c) { c.fault = LawFault::kDraftSharesResidualNoise; }),
                      make_case("accepts_by_target_prob",
                                VerifyMode::kStandard,
                                2,
                                [](LawCase& c) { c.fault = LawFault::kAcceptByTargetProb; }),
                      make_case("standard_bonus_from_wrong_row",
                                VerifyMode::kStandard,
                                1,
                                [](LawCase& c) {
                                  c.fault = LawFault::kBonusFromWrongRow;
                                  c.draft_len = 2;
                                }),
                      make_case("coupled_bonus_from_wrong_row",
                                VerifyMode::kCoupled,
                                1,
                                [](LawCase& c) {
                                  c.fault = LawFault::kBonusFromWrongRow;
                                  c.draft_len = 2;
                                })),
    case_name);

}  // namespace
}  // namespace outrider
