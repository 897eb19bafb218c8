// The counting draft: what it proposes, that its memory stays bounded, that what it says it drew
// from is a distribution it did draw from, and that text judged against it keeps the target's law.
#include "scheduler/drafting/bigram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "runtime/base/numbers/rng.h"
#include "scheduler/batching/planner.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/chi_square.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/sampling/grammar_engine.h"
#include "scheduler/verification/rules.h"
#include "scheduler/verification/verify.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

SamplingParams params_with(float temperature, VerifyMode mode, uint64_t seed = 7) {
  SamplingParams params;
  params.temperature = temperature;
  params.verify_mode = mode;
  params.noise_seed = seed;
  return params;
}

std::vector<DraftToken> propose(const BigramModel& model,
                                const Tokens& tokens,
                                const SamplingParams& params,
                                int32_t draft_len = 3,
                                uint32_t round = 0) {
  return propose_bigram(
      model, {.params = &params, .tokens = tokens, .round = round, .draft_len = draft_len});
}

BigramModel learned(CountingOrder order, int32_t vocab_size, const Tokens& text) {
  BigramModel model(order, vocab_size);
  model.learn(text, 0);
  return model;
}

Tokens random_text(size_t size, int32_t vocab_size, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::geometric_distribution<int32_t> token(0.2);
  Tokens text(size);
  for (int32_t& id : text) id = std::min(token(generator), vocab_size - 1);
  EXPECT_GT(std::set<int32_t>(text.begin(), text.end()).size(), 5u);
  return text;
}

TEST(Bigram, GreedyFollowsTheMostFrequentPair) {
  const BigramModel model =
      learned(CountingOrder::kBigram, 10, {1, 2, 1, 3, 1, 3, 4, 1, 3, 4, 5, 4});
  const auto draft = propose(model, {9, 1}, params_with(0, VerifyMode::kAuto));
  EXPECT_EQ(draft, (std::vector<DraftToken>{{3, {}}, {4, {}}, {1, {}}}));
}

TEST(Bigram, UnigramProposesTheMostFrequentTokenWhateverStoodBefore) {
  const BigramModel model = learned(CountingOrder::kUnigram, 10, {1, 2, 3, 3, 3, 2});
  for (int32_t last : {1, 2, 9}) {
    const auto draft = propose(model, {last}, params_with(0, VerifyMode::kAuto), 2);
    EXPECT_EQ(draft, (std::vector<DraftToken>{{3, {}}, {3, {}}}));
  }
}

TEST(Bigram, FallsBackToTheMostFrequentTokenAfterAnUnknownOne) {
  const BigramModel model = learned(CountingOrder::kBigram, 10, {1, 2, 2});
  EXPECT_EQ(propose(model, {7}, params_with(0, VerifyMode::kAuto), 1)[0].token, 2);
  EXPECT_EQ(propose(model, {}, params_with(0, VerifyMode::kAuto), 1)[0].token, 2);
}

TEST(Bigram, HasNothingToOfferBeforeItLearned) {
  const BigramModel model(CountingOrder::kBigram, 10);
  EXPECT_TRUE(propose(model, {1}, params_with(1, VerifyMode::kStandard)).empty());
}

TEST(Bigram, LearnsThePairAcrossThePieces) {
  const Tokens text = {1, 2, 3, 4};
  BigramModel model(CountingOrder::kBigram, 10);
  model.learn(std::span(text).first(2), 0);
  model.learn(text, 2);
  EXPECT_EQ(propose(model, {2}, params_with(0, VerifyMode::kAuto), 1)[0].token, 3);
}

TEST(Bigram, IdsOutsideTheVocabularyAreNotLearned) {
  const BigramModel model = learned(CountingOrder::kBigram, 4, {-1, 9, 4, 3, 100, 3, -7});
  ASSERT_EQ(model.followers(-1).size(), 1u);
  EXPECT_EQ(model.followers(-1)[0].token, 3);
  EXPECT_EQ(model.followers(3).size(), 1u);  // falls back: no pair lies inside
}

TEST(Bigram, RowsStayBoundedAndKeepWhatIsFrequent) {
  constexpr int32_t kVocab = 5000;
  std::mt19937_64 generator(3);
  Tokens text;
  for (int i = 0; i < 200000; ++i) {
    text.push_back(0);
    // One token in two is 17, the others are spread over everything.
    text.push_back(generator() % 2 == 0 ? 17 : static_cast<int32_t>(generator() % kVocab));
  }
  const BigramModel model = learned(CountingOrder::kBigram, kVocab, text);
  ASSERT_LE(model.followers(0).size(), BigramModel::kFollowers);
  ASSERT_LE(model.followers(-1).size(), BigramModel::kMostFrequent);
  int32_t sum = 0;
  for (const auto& entry : model.followers(0)) {
    EXPECT_GT(entry.weight(), 0);
    sum += entry.count;
  }
  EXPECT_LE(sum, 32768);
  EXPECT_EQ(propose(model, {0}, params_with(0, VerifyMode::kAuto), 1)[0].token, 17);
}

TEST(Bigram, CountsFollowAStreamThatChanges) {
  Tokens text;
  for (int i = 0; i < 40000; ++i) text.insert(text.end(), {1, 2});
  for (int i = 0; i < 60000; ++i) text.insert(text.end(), {1, 3});
  const BigramModel model = learned(CountingOrder::kBigram, 10, text);
  int32_t after_change = 0;
  int32_t before_change = 0;
  for (const auto& entry : model.followers(1)) {
    (entry.token == 3 ? after_change : before_change) += entry.weight();
  }
  EXPECT_GT(after_change, 2 * before_change);  // a plain count would say 1.5
}

TEST(Bigram, ExactWhileTheRowHasRoom) {
  const Tokens text = random_text(20000, 20, 5);
  const BigramModel model = learned(CountingOrder::kBigram, 20, text);
  std::map<std::pair<int32_t, int32_t>, int> pairs;
  for (size_t i = 1; i < text.size(); ++i) ++pairs[{text[i - 1], text[i]}];
  for (int32_t previous = 0; previous < 20; ++previous) {
    for (const auto& entry : model.followers(previous)) {
      EXPECT_EQ(entry.weight(), (pairs[{previous, entry.token}])) << previous << entry.token;
    }
  }
}

TEST(Bigram, ProposalsAreDeterministicAndValid) {
  constexpr int32_t kVocab = 300;
  const Tokens text = random_text(30000, kVocab, 8);
  const BigramModel model = learned(CountingOrder::kBigram, kVocab, text);
  const BigramModel again = learned(CountingOrder::kBigram, kVocab, text);
  std::set<int32_t> distinct;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SamplingParams params = params_with(seed % 3 == 0 ? 0.6f : 1.3f, VerifyMode::kStandard, seed);
    if (seed % 5 == 0) params.top_k = 3;
    if (seed % 7 == 0) params.top_p = 0.5f;
    if (seed % 11 == 0) params.min_p = 0.3f;
    const Tokens tokens = {text[seed]};
    const auto draft = propose(model, tokens, params, 4, static_cast<uint32_t>(seed));
    ASSERT_EQ(draft, propose(again, tokens, params, 4, static_cast<uint32_t>(seed)));
    ASSERT_EQ(draft.size(), 4u);
    for (const DraftToken& token : draft) {
      EXPECT_TRUE(valid_draft(token, kVocab));
      EXPECT_LE(token.candidates.size(), params.top_k > 0 ? 3u : 16u);
      distinct.insert(token.token);
    }
  }
  EXPECT_GT(distinct.size(), 8u);
}

TEST(Bigram, DrawsFromWhatItSends) {
  const BigramModel model =
      learned(CountingOrder::kBigram, 6, {0, 1, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 4, 0, 2});
  std::vector<uint64_t> counts(6, 0);
  std::vector<double> law(6, 0.0);
  for (uint64_t seed = 0; seed < 40000; ++seed) {
    const auto draft =
        propose(model, {0}, params_with(0.7f, VerifyMode::kStandard, mix_seed(seed, 1)), 1);
    ++counts[static_cast<size_t>(draft[0].token)];
    for (const auto& entry : draft[0].candidates) {
      law[static_cast<size_t>(entry.token)] = static_cast<double>(entry.draft_prob);
    }
  }
  const ChiSquare test = chi_square(counts, law);
  EXPECT_GE(test.degrees, 3);
  EXPECT_LE(test.statistic, test.limit);
  // Four of eight pairs are (0, 1), two (0, 2): under temperature 0.7 their ratio is 2^(1/0.7).
  EXPECT_NEAR(law[1] / law[2], std::pow(2.0, 1 / 0.7), 1e-4);
}

TEST(Bigram, CoupledTakesTheTargetsNoise) {
  // The law of a coin, and a target with the same law: they must agree always.
  const BigramModel model = learned(CountingOrder::kBigram, 4, {0, 1, 0, 2, 0, 1, 0, 2, 0});
  const std::vector<float> logits = {-1e9f, 0.0f, 0.0f, -1e9f};
  int num_first = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const SamplingParams params = params_with(1, VerifyMode::kCoupled, mix_seed(seed, 2));
    const Tokens tokens = {3, 0};
    const auto draft = propose(model, tokens, params, 1);
    ASSERT_TRUE(draft[0].candidates.empty());
    SoloExchange solo;
    VerifyInput input;
    input.params = &params;
    input.tokens = tokens;
    input.logits = logits.data();
    const auto decided = verify(std::span(&input, 1), {0, 4, 4}, solo);
    EXPECT_EQ(draft[0].token, decided[0].next_token);
    num_first += draft[0].token == 1 ? 1 : 0;
  }
  EXPECT_GT(num_first, 180);
  EXPECT_LT(num_first, 320);
}

// ---- through verify(): the law of the text, while the counts change under way

enum class Fault { kNone, kSaysAnotherLaw };

struct Played {
  ChiSquare test;
  double acceptance = 0;
};

Played play(CountingOrder order, VerifyMode mode, Fault fault) {
  constexpr int kVocab = 4;
  constexpr int kTokens = 3;
  constexpr int kSamples = 200000;
  const ToyModel target(kVocab, 11, 1.2f);
  const Tokens prompt = {1, 2};
  BigramModel served(order, kVocab);
  std::vector<uint64_t> counts(64, 0);
  int64_t num_examined = 0;
  int64_t num_accepted = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const SamplingParams params = params_with(1, mode, mix_seed(99, static_cast<uint64_t>(sample)));
    Tokens tokens = prompt;
    for (uint32_t round = 0; tokens.size() < prompt.size() + kTokens; ++round) {
      auto draft = propose(served, tokens, params, 2, round);
      if (fault == Fault::kSaysAnotherLaw) {
        for (DraftToken& token : draft) {
          for (DraftCandidate& entry : token.candidates) {
            entry.draft_prob = 1.0f / static_cast<float>(token.candidates.size());
          }
        }
      }
      std::vector<float> rows;
      Tokens context = tokens;
      for (size_t i = 0; i <= draft.size(); ++i) {
        const auto row = target.logits(context);
        rows.insert(rows.end(), row.begin(), row.end());
        if (i < draft.size()) context.push_back(draft[i].token);
      }
      SoloExchange solo;
      const VerifyInput input = {.params = &params,
                                 .tokens = tokens,
                                 .num_prompt_tokens = 2,
                                 .round = round,
                                 .draft = draft,
                                 .logits = rows.data()};
      const auto decided = verify(std::span(&input, 1), {0, kVocab, kVocab}, solo)[0];
      num_accepted += decided.num_accepted;
      num_examined +=
          std::min<int64_t>(decided.num_accepted + 1, static_cast<int64_t>(draft.size()));
      const size_t before = tokens.size();
      for (int32_t i = 0; i < decided.num_accepted; ++i) {
        tokens.push_back(draft[static_cast<size_t>(i)].token);
      }
      tokens.push_back(decided.next_token);
      served.learn(tokens, round == 0 ? 0 : before);
    }
    size_t cell = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      cell = cell * kVocab + static_cast<size_t>(tokens[prompt.size() + t]);
    }
    ++counts[cell];
  }
  Played played;
  played.test = chi_square(counts, joint_law(target, params_with(1, mode), prompt, kTokens));
  played.acceptance = static_cast<double>(num_accepted) / static_cast<double>(num_examined);
  return played;
}

TEST(BigramLaw, TextKeepsTheTargetsLawWhileTheDraftLearnsFromIt) {
  for (CountingOrder order : {CountingOrder::kUnigram, CountingOrder::kBigram}) {
    for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
      const Played played = play(order, mode, Fault::kNone);
      EXPECT_EQ(played.test.degrees, 63);
      EXPECT_LE(played.test.statistic, played.test.limit)
          << static_cast<int>(order) << " " << static_cast<int>(mode);
      EXPECT_GT(played.acceptance, 0.2);
      EXPECT_LT(played.acceptance, 0.98);
    }
  }
}

// Honest about the token, not about its chance (all candidates alike).
TEST(BigramLaw, ADraftThatLiesAboutItsLawIsCaught) {
  const Played played = play(CountingOrder::kBigram, VerifyMode::kStandard, Fault::kSaysAnotherLaw);
  EXPECT_GT(played.test.statistic, 10 * played.test.limit);
}

// ---- in the planner

std::vector<DraftToken> second_draft(const PlannerConfig& config) {
  Planner planner(config);
  Request request;
  request.id = 1;
  request.prompt = {5, 6, 7, 5, 6};
  request.params.temperature = 0;
  request.params.max_tokens = 20;
  request.stream = std::make_shared<ResultStream>();
  planner.add(std::move(request));
  RoundPlan plan = planner.plan();
  RoundDecision decision;
  decision.sequences = {{.sequence_id = 1, .num_accepted = 0, .next_token = 6}};
  planner.apply(plan, decision);
  EXPECT_FALSE(planner.wants_draft());
  EXPECT_TRUE(planner.take_draft_request().is_empty());
  return planner.plan().sequences.at(0).draft;
}

TEST(BigramPlanner, LearnsFromWhatIsServedUnlessATextTaughtIt) {
  PlannerConfig config;
  config.num_blocks = 64;
  config.max_model_len = 64;
  config.vocab_size = 100;
  config.draft_method = DraftMethod::kBigram;
  config.num_speculative_tokens = 3;
  // After 5 6 7 5 6 6: 6 was followed by 7 and by 6, the lower id wins the tie.
  EXPECT_EQ(second_draft(config), (std::vector<DraftToken>{{6, {}}, {6, {}}, {6, {}}}));
  config.draft_corpus =
      std::make_shared<BigramModel>(learned(CountingOrder::kBigram, 100, {6, 41, 42, 43}));
  EXPECT_EQ(second_draft(config), (std::vector<DraftToken>{{41, {}}, {42, {}}, {43, {}}}));
}

// A token that was drawn is judged even where the grammar forbids it: left out, its row would draw
// from the target's law instead of what the rejection leaves of it.
TEST(BigramPlanner, ADrawnTokenIsJudgedWhateverItIs) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  constexpr int32_t kVocabSize = 12;
  std::vector<std::string> token_bytes(kVocabSize);
  token_bytes[1] = "a";
  token_bytes[2] = "b";
  PlannerConfig config;
  config.num_blocks = 64;
  config.max_model_len = 64;
  config.vocab_size = kVocabSize;
  config.num_speculative_tokens = 3;
  config.draft_method = DraftMethod::kBigram;
  config.grammars = std::make_shared<const GrammarEngine>(token_bytes, kVocabSize);
  BigramModel corpus(CountingOrder::kBigram, kVocabSize);
  corpus.learn(std::vector<int32_t>{1, 1, 1, 2, 1, 1, 1, 2, 1, 2}, 0);
  config.draft_corpus = std::make_shared<const BigramModel>(corpus);
  int num_forbidden = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    Planner planner(config);
    Request request;
    request.id = id;
    request.prompt = {1, 1, 1, 1};
    request.params.max_tokens = 50;
    request.params.temperature = 1;
    request.params.verify_mode = VerifyMode::kBlock;
    request.stream = std::make_shared<ResultStream>();
    request.params.noise_seed = id;
    request.params.grammar =
        std::make_shared<const Grammar>(Grammar{GrammarKind::kRegex, std::string(40, 'a')});
    planner.add(std::move(request));
    const RoundPlan plan = planner.plan();
    std::vector<int32_t> drawn;
    for (const DraftToken& token : plan.sequences[0].draft) drawn.push_back(token.token);
    ASSERT_FALSE(drawn.empty());
    const auto forbidden = std::find(drawn.begin(), drawn.end(), 2);
    if (forbidden == drawn.end()) continue;
    ++num_forbidden;
    EXPECT_EQ(forbidden + 1, drawn.end()) << "nothing can follow it";
    EXPECT_EQ(plan.sequences[0].draft.back().candidates.size(), 2u);
  }
  EXPECT_GT(num_forbidden, 5);
}

}  // namespace
}  // namespace outrider
