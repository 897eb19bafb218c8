// The worked examples and formulas of the papers behind the rules, and what each rule promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/numbers/rng.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/round.h"
#include "scheduler/verification/rules.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

constexpr int kSamples = 200000;

std::vector<float> logits_of(const std::vector<double>& probs) {
  std::vector<float> logits;
  for (double prob : probs) logits.push_back(static_cast<float>(std::log(prob)));
  return logits;
}

DraftToken draft_token(int32_t token, const std::vector<double>& draft_probs) {
  DraftToken draft;
  draft.token = token;
  for (size_t v = 0; v < draft_probs.size(); ++v) {
    draft.candidates.push_back({static_cast<int32_t>(v), static_cast<float>(draft_probs[v])});
  }
  return draft;
}

// Four standard deviations of a counted share.
double tolerance(double probability, int count) {
  return 4.0 * std::sqrt(probability * (1.0 - probability) / count) + 1e-9;
}

struct OneToken {
  int num_accepted = 0;
  std::vector<int> corrections;
};

// Offers one token over and over with fresh noise.
OneToken offer(const std::vector<double>& target, const DraftToken& draft, int num_shards) {
  const auto vocab_size = static_cast<int32_t>(target.size());
  TestRound round;
  round.vocab_size = vocab_size;
  for (int i = 0; i < kSamples; ++i) {
    TestSequence sequence;
    sequence.params.noise_seed = mix_seed(5, static_cast<uint64_t>(i));
    sequence.params.verify_mode = VerifyMode::kStandard;
    sequence.tokens = {0};
    sequence.draft = {draft};
    sequence.rows = {logits_of(target), logits_of(target)};
    round.sequences.push_back(std::move(sequence));
  }
  OneToken result;
  result.corrections.resize(target.size());
  const ShardRun run = verify_on_shards(round, even_cuts(vocab_size, num_shards))[0];
  for (const SequenceDecision& decision : run.decisions) {
    if (decision.num_accepted == 1) {
      ++result.num_accepted;
    } else {
      ++result.corrections[static_cast<size_t>(decision.next_token)];
    }
  }
  return result;
}

// Target (.6, .3, .1), draft (.4, .5, .1): B is kept with .3/.5, and only A has target left over.
TEST(FoundingExamples, ThreeTokens) {
  const std::vector<double> draft = {0.4, 0.5, 0.1};
  const OneToken b = offer({0.6, 0.3, 0.1}, draft_token(1, draft), 2);
  EXPECT_NEAR(b.num_accepted / double{kSamples}, 0.6, tolerance(0.6, kSamples));
  EXPECT_EQ(b.corrections[0], kSamples - b.num_accepted);
  EXPECT_EQ(offer({0.6, 0.3, 0.1}, draft_token(0, draft), 3).num_accepted, kSamples);
}

// Target (.3, .7), draft (.5, .5): the first is kept with .6, the second always; the correction is
// the second.
TEST(FoundingExamples, TwoTokens) {
  const std::vector<double> draft = {0.5, 0.5};
  const OneToken first = offer({0.3, 0.7}, draft_token(0, draft), 2);
  EXPECT_NEAR(first.num_accepted / double{kSamples}, 0.6, tolerance(0.6, kSamples));
  EXPECT_EQ(first.corrections[1], kSamples - first.num_accepted);
  EXPECT_EQ(offer({0.3, 0.7}, draft_token(1, draft), 1).num_accepted, kSamples);
}

TEST(FoundingExamples, OneHotDraftIsKeptWithTheTargetsProbability) {
  const OneToken b = offer({0.6, 0.3, 0.1}, {1, {}}, 3);
  EXPECT_NEAR(b.num_accepted / double{kSamples}, 0.3, tolerance(0.3, kSamples));
  EXPECT_EQ(b.corrections[1], 0);
  const int num_corrected = kSamples - b.num_accepted;
  EXPECT_NEAR(b.corrections[0] / double(num_corrected), 6.0 / 7, tolerance(6.0 / 7, num_corrected));
}

// ---- expected accepted tokens
// ---------------------------------------------------------------------------------

// Every position has the law `target` and is drafted from `draft`.
TestSequence drafted_sequence(const std::vector<double>& target,
                              const std::vector<double>& draft,
                              int draft_len,
                              const SamplingParams& params) {
  const std::vector<float> draft_logits = logits_of(draft);
  TestSequence sequence;
  sequence.params = params;
  sequence.tokens = {0};
  for (int k = 0; k < draft_len; ++k) {
    DraftInput input;
    input.params = &sequence.params;
    input.tokens = sequence.tokens;
    input.num_prompt_tokens = 1;
    input.drafted = sequence.draft;
    input.logits = draft_logits.data();
    input.vocab_size = input.target_vocab_size = static_cast<int32_t>(draft.size());
    sequence.draft.push_back(propose(input));
  }
  sequence.rows.assign(static_cast<size_t>(draft_len) + 1, logits_of(target));
  return sequence;
}

struct Mean {
  double value = 0.0;
  double error = 0.0;  // standard error
};

Mean mean_accepted(const std::vector<double>& target,
                   const std::vector<double>& draft,
                   int draft_len,
                   VerifyMode mode,
                   int num_shards) {
  TestRound round;
  round.vocab_size = static_cast<int32_t>(target.size());
  for (int i = 0; i < kSamples; ++i) {
    SamplingParams params;
    params.noise_seed = mix_seed(6, static_cast<uint64_t>(i));
    params.verify_mode = mode;
    round.sequences.push_back(drafted_sequence(target, draft, draft_len, params));
  }
  double sum = 0.0;
  double squares = 0.0;
  const ShardRun run = verify_on_shards(round, even_cuts(round.vocab_size, num_shards))[0];
  for (const SequenceDecision& decision : run.decisions) {
    sum += decision.num_accepted;
    squares += decision.num_accepted * decision.num_accepted;
  }
  const double mean = sum / kSamples;
  return {mean, std::sqrt((squares / kSamples - mean * mean) / kSamples)};
}

// Sun et al.: expected accepted = sum_i E[P_i], the expectation over what the draft draws.
double expected_block(const std::vector<double>& target,
                      const std::vector<double>& draft,
                      int draft_len) {
  std::vector<std::pair<double, double>> paths = {{1.0, 1.0}};  // probability of the path, P_i
  double expected = 0.0;
  for (int i = 0; i < draft_len; ++i) {
    std::vector<std::pair<double, double>> longer;
    for (const auto& [probability, kept] : paths) {
      for (size_t v = 0; v < draft.size(); ++v) {
        longer.emplace_back(probability * draft[v], std::min(kept * target[v] / draft[v], 1.0));
        expected += longer.back().first * longer.back().second;
      }
    }
    paths = std::move(longer);
  }
  return expected;
}

double expected_standard(const std::vector<double>& target,
                         const std::vector<double>& draft,
                         int draft_len) {
  double alpha = 0.0;
  for (size_t v = 0; v < target.size(); ++v) alpha += std::min(target[v], draft[v]);
  return (1.0 - std::pow(alpha, draft_len + 1)) / (1.0 - alpha) - 1.0;
}

// Leviathan eq. (1) less the bonus token: expected accepted = (1 - a^(K+1)) / (1 - a) - 1, a = sum
// min(target, draft).
TEST(Standard, ExpectedAcceptedTokens) {
  const std::vector<double> target = {0.5, 0.2, 0.2, 0.1};
  const std::vector<double> draft = {0.25, 0.45, 0.1, 0.2};
  const Mean mean = mean_accepted(target, draft, 4, VerifyMode::kStandard, 1);
  EXPECT_NEAR(mean.value, expected_standard(target, draft, 4), 4.0 * mean.error);
}

TEST(Block, ExpectedAcceptedTokens) {
  const std::vector<double> target = {0.5, 0.2, 0.2, 0.1};
  const std::vector<double> draft = {0.25, 0.45, 0.1, 0.2};
  for (int draft_len : {1, 3, 5}) {
    const double expected = expected_block(target, draft, draft_len);
    const Mean mean = mean_accepted(target, draft, draft_len, VerifyMode::kBlock, 2);
    EXPECT_NEAR(mean.value, expected, 4.0 * mean.error) << draft_len;
    const double standard = expected_standard(target, draft, draft_len);
    if (draft_len == 1) {
      EXPECT_NEAR(expected, standard, 1e-12);
    } else {
      EXPECT_GT(expected - 10.0 * mean.error, standard) << draft_len;
    }
  }
}

// The worked example of the paper's introduction: 10/9 tokens for the standard rule, 11/9 for
// block.
TEST(Block, TheToyExample) {
  const std::vector<double> target = {1.0 / 3, 2.0 / 3};
  const std::vector<double> draft = {2.0 / 3, 1.0 / 3};
  EXPECT_NEAR(expected_standard(target, draft, 2), 10.0 / 9, 1e-12);
  EXPECT_NEAR(expected_block(target, draft, 2), 11.0 / 9, 1e-12);
  const Mean standard = mean_accepted(target, draft, 2, VerifyMode::kStandard, 2);
  const Mean block = mean_accepted(target, draft, 2, VerifyMode::kBlock, 2);
  EXPECT_NEAR(standard.value, 10.0 / 9, 4.0 * standard.error);
  EXPECT_NEAR(block.value, 11.0 / 9, 4.0 * block.error);
  EXPECT_LT(block.error, 0.003);
}

// With one draft token the two rules are the same rule: the same noise gives the same decision.
TEST(Block, OneDraftTokenIsJudgedAsByTheStandardRule) {
  std::mt19937_64 generator(9);
  int num_accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    TestSequence sequence = random_sequence(60, generator);
    sequence.params.temperature = 0.9f;
    if (sequence.draft.empty()) continue;
    sequence.draft.resize(1);
    sequence.rows.resize(2);
    sequence.params.verify_mode = VerifyMode::kStandard;
    const SequenceDecision standard = verify_alone({60, {sequence}})[0];
    sequence.params.verify_mode = VerifyMode::kBlock;
    const SequenceDecision block = verify_alone({60, {sequence}})[0];
    EXPECT_TRUE(same(standard, block)) << i;
    num_accepted += block.num_accepted;
  }
  EXPECT_GT(num_accepted, 300);
  EXPECT_LT(num_accepted, 1500);
}

TEST(Block, KeptProbabilitiesAndVerdictAtTheirEdges) {
  const auto row = [](std::vector<float> draft_probs, std::vector<uint64_t> weights, size_t drawn) {
    JudgedRow judged;
    for (float draft_prob : draft_probs) {
      judged.draft.push_back({static_cast<int32_t>(judged.draft.size()), draft_prob});
    }
    judged.mass = 100;
    judged.weights = std::move(weights);
    judged.drawn = drawn;
    return judged;
  };
  // Half kept, then doubled back to 1, then cut from the target: nothing after that can stand.
  const std::vector<JudgedRow> rows = {row({0.5f, 0.5f}, {25, 75}, 0),
                                       row({0.25f, 0.75f}, {60, 40}, 0),
                                       row({0.5f, 0.5f}, {0, 50}, 0),
                                       row({0.5f, 0.5f}, {100, 0}, 0)};
  std::vector<double> kept = {1.0};
  for (const JudgedRow& judged : rows) kept.push_back(block_kept_prob(kept.back(), judged));
  EXPECT_EQ(kept, (std::vector<double>{1.0, 0.5, 1.0, 0.0, 0.0}));
  const std::vector<double> lowest(4, 1e-9);
  EXPECT_EQ(judge_block(rows, lowest).num_accepted, 2);
  EXPECT_EQ(judge_block(rows, lowest).kept_prob, 1.0);
  const std::vector<double> highest(4, 1.0 - 1e-9);
  EXPECT_EQ(judge_block(rows, highest).num_accepted, 2);  // 2 is certain: P = 1 and a residual
  EXPECT_EQ(judge_block(std::span(rows).first(1), highest).num_accepted, 0);
  EXPECT_EQ(judge_block(std::span(rows).first(1), lowest).kept_prob, 0.5);
  // h_1 = Z / (Z + 1 - P_1) with P_1 = 1/2, Z = max(.3 - .25, 0) + max(.2 - .75, 0) = .05.
  const double threshold = 0.05 / 0.55;
  const auto two = std::span(rows).first(2);
  std::vector<double> uniforms = {threshold - 1e-6, 1.0};
  JudgedRow last = rows[1];
  last.drawn = 1;  // P_2 = .5 * .4 / .75
  const std::vector<JudgedRow> pair = {two[0], last};
  EXPECT_EQ(judge_block(pair, uniforms).num_accepted, 1);
  uniforms[0] = threshold + 1e-6;
  EXPECT_EQ(judge_block(pair, uniforms).num_accepted, 0);
  uniforms[1] = 0.5 * 0.4 / 0.75 - 1e-6;
  EXPECT_EQ(judge_block(pair, uniforms).num_accepted, 2);
}

// Daliri et al.: P(agree) = sum_i 1 / sum_j max(t_j / t_i, d_j / d_i), and at least (1 - TV) / (1 +
// TV).
TEST(Coupled, AgreementProbability) {
  const std::vector<double> target = {0.5, 0.2, 0.2, 0.07, 0.03};
  const std::vector<double> draft = {0.3, 0.35, 0.1, 0.05, 0.2};
  double formula = 0.0;
  double distance = 0.0;
  for (size_t i = 0; i < 5; ++i) {
    double sum = 0.0;
    for (size_t j = 0; j < 5; ++j) {
      sum += std::max(target[j] / target[i], draft[j] / draft[i]);
    }
    formula += 1.0 / sum;
    distance += std::abs(target[i] - draft[i]) / 2;
  }
  EXPECT_GE(formula, (1.0 - distance) / (1.0 + distance));
  const std::vector<float> draft_logits = logits_of(draft);
  const std::vector<float> target_logits = logits_of(target);
  SamplingParams params;
  params.verify_mode = VerifyMode::kCoupled;
  const std::vector<int32_t> tokens = {0, 1};
  int num_agreed = 0;
  for (int i = 0; i < kSamples; ++i) {
    params.noise_seed = mix_seed(7, static_cast<uint64_t>(i));
    DraftInput from_draft;
    from_draft.params = &params;
    from_draft.tokens = tokens;
    from_draft.num_prompt_tokens = 2;
    from_draft.vocab_size = from_draft.target_vocab_size = 5;
    DraftInput from_target = from_draft;
    from_draft.logits = draft_logits.data();
    from_target.logits = target_logits.data();
    num_agreed += propose(from_draft).token == propose(from_target).token ? 1 : 0;
  }
  EXPECT_NEAR(num_agreed / double{kSamples}, formula, tolerance(formula, kSamples));
}

// ---- same text whatever is drafted
// ----------------------------------------------------------------------------

// Text of a toy model, drafting with another (or the same) model in blocks of draft_len; 0 is plain
// decoding.
std::vector<int32_t> write_text(const ToyModel& target,
                                const ToyModel& draft,
                                const SamplingParams& params,
                                int draft_len,
                                int num_tokens) {
  TestSequence sequence;
  sequence.params = params;
  sequence.tokens = {0, 1};
  sequence.num_prompt_tokens = 2;
  const auto wanted = static_cast<size_t>(num_tokens) + 2;
  while (sequence.tokens.size() < wanted) {
    sequence.draft.clear();
    std::vector<int32_t> context = sequence.tokens;
    sequence.rows.clear();
    for (int k = 0; k <= draft_len; ++k) {
      const std::span<const float> row = target.logits(context);
      sequence.rows.emplace_back(row.begin(), row.end());
      if (k == draft_len) break;
      DraftInput input;
      input.params = &sequence.params;
      input.tokens = sequence.tokens;
      input.num_prompt_tokens = 2;
      input.drafted = sequence.draft;
      input.round = sequence.round;
      input.logits = draft.logits(context).data();
      input.vocab_size = input.target_vocab_size = target.vocab_size();
      sequence.draft.push_back(propose(input));
      context.push_back(sequence.draft.back().token);
    }
    const SequenceDecision decision = verify_alone({target.vocab_size(), {sequence}})[0];
    for (int32_t k = 0; k < decision.num_accepted; ++k) {
      sequence.tokens.push_back(sequence.draft[static_cast<size_t>(k)].token);
    }
    sequence.tokens.push_back(decision.next_token);
    ++sequence.round;
  }
  sequence.tokens.resize(wanted);
  return sequence.tokens;
}

TEST(SameText, CoupledAndGreedyDoNotDependOnDraftOrDraftLen) {
  const ToyModel target(9, 31, 2.0f);
  for (int variant = 0; variant < 6; ++variant) {
    SamplingParams params;
    params.noise_seed = 77;
    params.seed = 77;  // kAuto: coupled
    if (variant == 1) params.top_p = 0.8f;
    if (variant == 2) params.top_k = 3;
    if (variant == 3) params.repetition_penalty = 1.5f;
    if (variant == 4) params.frequency_penalty = 0.8f;
    if (variant == 5) params.temperature = 0.0f;
    if (variant == 5) params.frequency_penalty = 0.3f;  // or it would soon write in a circle
    const std::vector<int32_t> plain = write_text(target, target, params, 0, 200);
    EXPECT_GT(*std::max_element(plain.begin(), plain.end()), 2);
    for (uint64_t seed : {41, 42}) {
      const ToyModel draft = target.perturbed(seed, 1.0f);
      for (int draft_len : {1, 2, 4, 8, 16}) {
        EXPECT_EQ(write_text(target, draft, params, draft_len, 200), plain)
            << "variant " << variant << " draft_len " << draft_len;
      }
    }
  }
}

TEST(SameText, AnotherSeedWritesAnotherText) {
  const ToyModel target(9, 31, 1.0f);
  SamplingParams params;
  params.seed = 1;
  params.noise_seed = 1;
  const std::vector<int32_t> one = write_text(target, target, params, 2, 50);
  params.noise_seed = 2;
  EXPECT_NE(write_text(target, target, params, 2, 50), one);
}

TEST(SameText, AnIdenticalDraftAlwaysStandsWhenCoupled) {
  std::mt19937_64 generator(8);
  TestRound round;
  round.vocab_size = 500;
  for (int i = 0; i < 50; ++i) {
    TestSequence sequence;
    sequence.params.seed = sequence.params.noise_seed = generator();
    sequence.params.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    sequence.tokens = {1, 2, 3};
    for (int k = 0; k < 4; ++k) {
      sequence.rows.push_back(random_logits(500, false, generator));
      if (k == 3) break;
      DraftInput input;
      input.params = &sequence.params;
      input.tokens = sequence.tokens;
      input.num_prompt_tokens = 3;
      input.drafted = sequence.draft;
      input.logits = sequence.rows.back().data();
      input.vocab_size = input.target_vocab_size = 500;
      sequence.draft.push_back(propose(input));
    }
    round.sequences.push_back(std::move(sequence));
  }
  for (const ShardRun& run : verify_on_shards(round, even_cuts(500, 3))) {
    for (const SequenceDecision& decision : run.decisions) EXPECT_EQ(decision.num_accepted, 3);
  }
}

// ---- pure functions
// -------------------------------------------------------------------------------------------

TEST(Rules, AcceptTestAtItsEdges) {
  EXPECT_TRUE(standard_accepts(0.5999, 0.5f, 3, 10));
  EXPECT_FALSE(standard_accepts(0.6001, 0.5f, 3, 10));
  EXPECT_FALSE(standard_accepts(1e-10, 0.5f, 0, 10));  // cut from the target
  EXPECT_FALSE(standard_accepts(0.5, 0.5f, 0, 0));
  EXPECT_TRUE(standard_accepts(0.9999999, 1.0f, 10, 10));
}

TEST(Rules, ResolvedRule) {
  SamplingParams params;
  EXPECT_EQ(resolve_rule(params), VerifyRule::kBlock);
  params.seed = 3;
  EXPECT_EQ(resolve_rule(params), VerifyRule::kCoupled);
  params.verify_mode = VerifyMode::kStandard;
  EXPECT_EQ(resolve_rule(params), VerifyRule::kStandard);
  params.verify_mode = VerifyMode::kBlock;
  EXPECT_EQ(resolve_rule(params), VerifyRule::kBlock);
  params.verify_mode = VerifyMode::kCoupled;
  params.seed.reset();
  EXPECT_EQ(resolve_rule(params), VerifyRule::kCoupled);
  for (float temperature : {0.0f, 1e-6f, std::numeric_limits<float>::quiet_NaN()}) {
    params.temperature = temperature;
    EXPECT_EQ(resolve_rule(params), VerifyRule::kGreedy);
  }
}

TEST(Rules, ValidDraft) {
  const DraftToken good{2, {{2, 0.75f}, {0, 0.25f}}};
  EXPECT_TRUE(valid_draft(good, 3));
  EXPECT_TRUE(valid_draft({2, {}}, 3));
  EXPECT_FALSE(valid_draft({3, {}}, 3));
  EXPECT_FALSE(valid_draft({-1, {}}, 3));
  EXPECT_FALSE(valid_draft({1, {{2, 0.75f}, {0, 0.25f}}}, 3));   // token missing
  EXPECT_FALSE(valid_draft({2, {{2, 0.75f}, {2, 0.25f}}}, 3));   // twice
  EXPECT_FALSE(valid_draft({2, {{2, 0.75f}, {3, 0.25f}}}, 3));   // out of range
  EXPECT_FALSE(valid_draft({2, {{2, 0.75f}, {-1, 0.25f}}}, 3));  // out of range
  EXPECT_FALSE(valid_draft({2, {{2, 0.75f}, {0, 0.2f}}}, 3));    // does not sum to 1
  EXPECT_FALSE(valid_draft({2, {{2, 1.25f}, {0, -0.25f}}}, 3));
  EXPECT_FALSE(valid_draft({2, {{2, 0.0f}, {0, 1.0f}}}, 3));
  EXPECT_FALSE(valid_draft({2, {{2, std::numeric_limits<float>::quiet_NaN()}, {0, 0.2f}}}, 3));
  DraftToken long_list{0, {}};
  for (int32_t v = 0; v < 1000; ++v) long_list.candidates.push_back({v, 0.001f});
  EXPECT_FALSE(valid_draft(long_list, 1000));
}

// Both ways of looking for one, short lists and long ones.
TEST(Rules, ADraftThatNamesATokenTwiceIsNotValid) {
  for (const int32_t num : {2, 3, 15, 16, 17, 40}) {
    DraftToken token{100, {}};
    const float prob = 1.0f / static_cast<float>(num);
    for (int32_t i = 0; i < num; ++i) token.candidates.push_back({100 + i * 37 % 101, prob});
    ASSERT_TRUE(valid_draft(token, 1000)) << num;
    for (size_t i = 1; i < token.candidates.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        DraftToken twice = token;
        twice.candidates[i].token = twice.candidates[j].token;
        ASSERT_FALSE(valid_draft(twice, 1000)) << num << ": " << i << " as " << j;
      }
    }
  }
}

TEST(Rules, AnEmptyResidualFallsBackToTheTarget) {
  // Rounding up to 1 in the draft's likeliest token leaves the target nothing over, and the token
  // offered was cut.
  TestSequence sequence;
  sequence.params.logit_bias = {{2, -std::numeric_limits<float>::infinity()}};
  sequence.params.top_k = 1;
  sequence.tokens = {0};
  sequence.draft = {{1, {{0, 1.0f}, {1, 1e-7f}}}};
  ASSERT_TRUE(valid_draft(sequence.draft[0], 3));
  sequence.rows = {{2.0f, 1.0f, 0.0f}, {0.0f, 0.0f, 0.0f}};
  for (uint64_t seed = 0; seed < 50; ++seed) {
    sequence.params.noise_seed = seed;
    sequence.params.verify_mode = seed % 2 == 0 ? VerifyMode::kStandard : VerifyMode::kBlock;
    for (const ShardRun& run : verify_on_shards({3, {sequence}}, {1, 3})) {
      EXPECT_EQ(run.decisions[0].num_accepted, 0);
      EXPECT_EQ(run.decisions[0].next_token, 0);
    }
  }
}

}  // namespace
}  // namespace outrider
