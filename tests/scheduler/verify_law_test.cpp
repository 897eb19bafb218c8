// Losslessness, counted: speculative generation through propose() and verify() on sharded logits
// against the exact joint law of the first tokens, and the same test on deliberately broken
// variants, which it must catch.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "runtime/base/rng.h"
#include "scheduler/verify.h"
#include "tests/scheduler/chi_square.h"
#include "tests/scheduler/thread_exchange.h"
#include "tests/scheduler/toy_model.h"

namespace outrider {
namespace {

enum class DraftKind { kNone, kModel, kMostLikely, kLastRepeated };
enum class Fault { kNone, kDraftSharesResidualNoise, kAcceptByTargetProb, kBonusFromWrongRow };

struct LawCase {
  std::string name;
  SamplingParams params;
  DraftKind draft = DraftKind::kModel;
  int32_t num_candidates = 16;
  int draft_len = 3;
  int num_shards = 1;
  int32_t vocab_size = 4;
  int num_tokens = 3;
  Fault fault = Fault::kNone;
  int num_samples = 200000;
};

struct Sequence {
  SamplingParams params;
  std::vector<int32_t> tokens;
  uint32_t round = 0;
  std::vector<DraftToken> draft;
};

// Turns the accept test into u < target_prob, by scaling the reduced weights by draft_prob.
class WrongAcceptExchange final : public ShardExchange {
 public:
  WrongAcceptExchange(ShardExchange& real, const std::vector<Sequence>& batch) : real_(real) {
    for (const Sequence& sequence : batch) {
      for (const DraftToken& token : sequence.draft) {
        double draft_prob = 1.0;
        for (const DraftCandidate& candidate : token.candidates) {
          if (candidate.token == token.token) draft_prob = candidate.draft_prob;
        }
        draft_probs_.push_back(draft_prob);
      }
    }
  }
  int num_shards() const override { return real_.num_shards(); }
  void max(std::span<uint64_t> values) override { real_.max(values); }
  void sum(std::span<uint64_t> values) override {
    real_.sum(values);
    for (size_t i = 0; i < draft_probs_.size(); ++i) {
      values[2 * i + 1] =
          static_cast<uint64_t>(static_cast<double>(values[2 * i + 1]) * draft_probs_[i]);
    }
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    real_.gather(mine, all);
  }

 private:
  ShardExchange& real_;
  std::vector<double> draft_probs_;
};

class Generator {
 public:
  explicit Generator(const LawCase& law_case)
      : case_(law_case),
        target_(law_case.vocab_size, 11, 1.2f),
        draft_(target_.perturbed(12, 0.9f)) {}

  ChiSquare run() {
    std::vector<uint64_t> counts(joint_size(), 0);
    const int batch_size = 2500;  // few meetings of the threads, yet small enough for the caches
    for (int first = 0; first < case_.num_samples; first += batch_size) {
      std::vector<Sequence> finished =
          generate(first, std::min(batch_size, case_.num_samples - first));
      for (const Sequence& sequence : finished) ++counts[cell(sequence)];
    }
    return chi_square(counts, joint_law(target_, case_.params, prompt_, case_.num_tokens));
  }

  double accepted_per_round() const {
    return static_cast<double>(num_accepted_) / static_cast<double>(num_rounds_);
  }

 private:
  size_t joint_size() const {
    size_t size = 1;
    for (int t = 0; t < case_.num_tokens; ++t) size *= static_cast<size_t>(case_.vocab_size);
    return size;
  }

  size_t cell(const Sequence& sequence) const {
    size_t index = 0;
    for (int t = 0; t < case_.num_tokens; ++t) {
      index = index * static_cast<size_t>(case_.vocab_size) +
              static_cast<size_t>(sequence.tokens[prompt_.size() + static_cast<size_t>(t)]);
    }
    return index;
  }

  std::vector<Sequence> generate(int first, int count) {
    std::vector<Sequence> running;
    std::vector<Sequence> finished;
    for (int i = 0; i < count; ++i) {
      Sequence sequence;
      sequence.params = case_.params;
      sequence.params.noise_seed = mix_seed(99, static_cast<uint64_t>(first + i));
      sequence.tokens = prompt_;
      running.push_back(std::move(sequence));
    }
    while (!running.empty()) {
      for (Sequence& sequence : running) make_draft(sequence);
      apply(running, decide(running));
      const auto is_done = [&](const Sequence& sequence) {
        return sequence.tokens.size() >= prompt_.size() + static_cast<size_t>(case_.num_tokens);
      };
      const auto middle = std::stable_partition(
          running.begin(), running.end(), [&](const Sequence& s) { return !is_done(s); });
      finished.insert(finished.end(), middle, running.end());
      running.erase(middle, running.end());
    }
    return finished;
  }

  void make_draft(Sequence& sequence) const {
    sequence.draft.clear();
    if (case_.draft == DraftKind::kNone) return;
    std::vector<int32_t> context = sequence.tokens;
    for (int i = 0; i < case_.draft_len; ++i) {
      DraftToken token = next_draft(sequence, context);
      context.push_back(token.token);
      sequence.draft.push_back(std::move(token));
    }
  }

  DraftToken next_draft(const Sequence& sequence, const std::vector<int32_t>& context) const {
    const std::span<const float> logits = draft_.logits(context);
    if (case_.draft == DraftKind::kLastRepeated) return {context.back(), {}};
    if (case_.draft == DraftKind::kMostLikely) {
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      return {static_cast<int32_t>(best), {}};
    }
    DraftInput input;
    input.params = &sequence.params;
    input.tokens = sequence.tokens;
    input.num_prompt_tokens = static_cast<int32_t>(prompt_.size());
    input.drafted = sequence.draft;
    input.round = sequence.round;
    input.logits = logits.data();
    input.vocab_size = case_.vocab_size;
    input.target_vocab_size = case_.vocab_size;
    input.num_candidates = case_.num_candidates;
    DraftToken token = propose(input);
    EXPECT_TRUE(valid_draft(token, case_.vocab_size));
    if (case_.fault == Fault::kDraftSharesResidualNoise)
      redraw_with_residual_noise(sequence, token);
    return token;
  }

  static void redraw_with_residual_noise(const Sequence& sequence, DraftToken& token) {
    const auto position = static_cast<uint32_t>(sequence.tokens.size() + sequence.draft.size());
    const NoiseKey key{sequence.params.noise_seed, position, Stream::kResidual, sequence.round};
    double best = -1e300;
    for (const DraftCandidate& candidate : token.candidates) {
      const double score = exact_log(static_cast<double>(candidate.draft_prob)) +
                           gumbel_from_bits(noise_bits(key, candidate.token));
      if (score > best) token.token = candidate.token;
      best = std::max(best, score);
    }
  }

  // The logits of every row, cut to a shard.
  std::vector<float> shard_rows(const Sequence& sequence, const VocabShard& shard) const {
    std::vector<float> rows;
    std::vector<int32_t> context = sequence.tokens;
    for (size_t i = 0; i <= sequence.draft.size(); ++i) {
      const bool wrong =
          case_.fault == Fault::kBonusFromWrongRow && i > 0 && i == sequence.draft.size();
      const std::span<const float> logits =
          wrong ? target_.logits(std::span(context).first(context.size() - 1))
                : target_.logits(context);
      rows.insert(rows.end(), logits.begin() + shard.begin, logits.begin() + shard.end);
      if (i < sequence.draft.size()) context.push_back(sequence.draft[i].token);
    }
    return rows;
  }

  std::vector<SequenceDecision> decide(const std::vector<Sequence>& batch) const {
    const auto work = [&](int rank, ShardExchange& exchange) {
      const VocabShard shard = even_shard(case_.vocab_size, rank, case_.num_shards);
      std::vector<std::vector<float>> logits;
      std::vector<VerifyInput> inputs;
      for (const Sequence& sequence : batch) {
        logits.push_back(shard_rows(sequence, shard));
        VerifyInput input;
        input.params = &sequence.params;
        input.tokens = sequence.tokens;
        input.num_prompt_tokens = static_cast<int32_t>(prompt_.size());
        input.round = sequence.round;
        input.draft = sequence.draft;
        input.logits = logits.back().data();
        inputs.push_back(input);
      }
      if (case_.fault == Fault::kAcceptByTargetProb) {
        WrongAcceptExchange wrong(exchange, batch);
        return verify(inputs, shard, wrong);
      }
      return verify(inputs, shard, exchange);
    };
    if (case_.num_shards == 1) {
      SoloExchange solo;
      return work(0, solo);
    }
    return run_on_shards<std::vector<SequenceDecision>>(case_.num_shards, work)[0];
  }

  void apply(std::vector<Sequence>& batch, const std::vector<SequenceDecision>& decisions) {
    for (size_t i = 0; i < batch.size(); ++i) {
      Sequence& sequence = batch[i];
      EXPECT_FALSE(decisions[i].failed);
      for (int32_t k = 0; k < decisions[i].num_accepted; ++k) {
        sequence.tokens.push_back(sequence.draft[static_cast<size_t>(k)].token);
      }
      sequence.tokens.push_back(decisions[i].next_token);
      ++sequence.round;
      num_accepted_ += decisions[i].num_accepted;
      ++num_rounds_;
    }
  }

  const LawCase case_;
  ToyModel target_;
  ToyModel draft_;
  std::vector<int32_t> prompt_ = {1, 2, 1};
  int64_t num_accepted_ = 0;
  int64_t num_rounds_ = 0;
};

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
  law_case.num_shards = num_shards;
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
  Generator generator(GetParam());
  const ChiSquare test = generator.run();
  RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GE(test.degrees, 3);
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " at df " << test.degrees;
  if (GetParam().draft != DraftKind::kNone) {
    // Neither everything nor nothing stood: both branches of the rule were taken.
    EXPECT_GT(generator.accepted_per_round(), 0.1);
    EXPECT_LT(generator.accepted_per_round(), 0.97 * GetParam().draft_len);
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
  const ChiSquare test = Generator(GetParam()).run();
  RecordProperty("chi_square", std::to_string(test.statistic));
  EXPECT_GT(test.statistic, 3.0 * test.limit) << "df " << test.degrees;
}

INSTANTIATE_TEST_SUITE_P(
    Broken,
    NegativeControl,
    ::testing::Values(make_case("draft_shares_residual_noise",
                                VerifyMode::kStandard,
                                2,
                                [](LawCase& c) { c.fault = Fault::kDraftSharesResidualNoise; }),
                      make_case("accepts_by_target_prob",
                                VerifyMode::kStandard,
                                2,
                                [](LawCase& c) { c.fault = Fault::kAcceptByTargetProb; }),
                      make_case("standard_bonus_from_wrong_row",
                                VerifyMode::kStandard,
                                1,
                                [](LawCase& c) {
                                  c.fault = Fault::kBonusFromWrongRow;
                                  c.draft_len = 2;
                                }),
                      make_case("coupled_bonus_from_wrong_row",
                                VerifyMode::kCoupled,
                                1,
                                [](LawCase& c) {
                                  c.fault = Fault::kBonusFromWrongRow;
                                  c.draft_len = 2;
                                })),
    case_name);

}  // namespace
}  // namespace outrider
