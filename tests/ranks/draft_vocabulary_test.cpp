// A draft with another tokenizer: its worker proposes what its model would write, in the target's
// ids, through rollbacks; the text stays the target's; a draft that cannot serve is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/base/error.h"
#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/loading/model_names.h"
#include "runtime/ranks/loading/model_probe.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/other_vocabulary.h"

namespace outrider::test {
namespace {

constexpr OtherVocabulary::Options kOther = {
    .rename_every = 20, .rename_end = true, .num_extra_rows = 8};

const std::vector<std::string> kPrompts = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door",
    "My dear Watson,",
    "The soldiers had been marching since the morning. The officer looked at the sky and said",
    "\"What is it?\" asked Natasha.",
    "Zwölf naïve cafés — 12,345 £",
};

struct Worker {
  explicit Worker(const RunConfig& config) : loaded(load_draft(config, {1, true}, 1)) {
    const ModelConfig target = model_config_of(config.model, Role::kTarget);
    worker =
        std::make_unique<DraftWorker>(*loaded.model,
                                      DraftWorker::Options{.target_vocab_size = target.vocab_size,
                                                           .vocabulary = loaded.vocabulary.get()});
  }
  std::vector<DraftBlock> answer(const DraftRequest& request) {
    worker->take(request);
    for (int i = 0; i < 1000 && worker->has_work(); ++i) worker->step();
    EXPECT_FALSE(worker->has_work());
    auto reply = worker->take_reply();
    return reply ? reply->blocks : std::vector<DraftBlock>{};
  }
  LoadedModel loaded;
  std::unique_ptr<DraftWorker> worker;
};

std::vector<int32_t> tokens_of(const DraftBlock& block) {
  std::vector<int32_t> tokens;
  for (const DraftToken& token : block.tokens) tokens.push_back(token.token);
  return tokens;
}

std::vector<int32_t> encode(const std::string& text) {
  return Tokenizer::load(model_folder("embedded", Role::kTarget))->encode(text);
}

// When only ids differ nothing else may: the same tokens with the same probabilities, bit for bit,
// as the draft it was made from, under every rule and processor.
TEST(DraftVocabulary, OtherIdsAloneChangeNothing) {
  const OtherVocabulary other({.num_extra_rows = 8});
  Worker translated(other.config(1, 4));
  ASSERT_NE(translated.loaded.vocabulary, nullptr);
  EXPECT_EQ(translated.loaded.vocabulary->pairs().size(), 3072u);
  Worker direct(embedded_config(1, 4));
  ASSERT_EQ(direct.loaded.vocabulary, nullptr);
  std::vector<SamplingParams> cases = {
      greedy(100), sampled(1.0f, 100), seeded(0.8f, 5, 100), sampled(0.7f, 100)};
  cases[3].top_k = 20;
  cases[3].top_p = 0.9f;
  cases[3].repetition_penalty = 1.3f;
  cases[3].presence_penalty = 0.5f;
  cases[3].logit_bias = {{300, 3.0f}, {69, -100.0f}};
  cases.push_back(cases[3]);
  cases.back().verify_mode = VerifyMode::kCoupled;
  size_t num_candidates = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<int32_t> prompt = encode(kPrompts[i]);
    cases[i].noise_seed = 77 + i;
    DraftRequest request;
    request.opens.push_back({i, cases[i], prompt});
    std::vector<int32_t> text = prompt;
    for (uint32_t round = 0; round < 8; ++round) {
      std::vector<int32_t> committed = {static_cast<int32_t>(60 + 13 * round)};
      request.commits = {{i,
                          round,
                          static_cast<int32_t>(text.size()),
                          committed,
                          1 + static_cast<int32_t>(round)}};
      text.push_back(committed[0]);
      const auto expected = direct.answer(request);
      const auto got = translated.answer(request);
      ASSERT_EQ(expected.size(), 1u);
      ASSERT_EQ(got.size(), 1u);
      ASSERT_EQ(got[0].tokens, expected[0].tokens) << "case " << i << " round " << round;
      EXPECT_EQ(got[0].base_len, expected[0].base_len);
      ASSERT_EQ(got[0].tokens.size(), round + 1);
      for (const DraftToken& token : got[0].tokens) num_candidates += token.candidates.size();
      request = {};
    }
  }
  EXPECT_GT(num_candidates, 100u);
}

// With tokens that have no partner: the greedy block is the model's best sayable continuation of
// the translated text, after commits that agree, disagree and consist of unsayable tokens.
TEST(DraftVocabulary, BlocksFollowTheModelThroughRollbacks) {
  const OtherVocabulary other(kOther);
  const RunConfig config = other.config(1, 4);
  Worker translated(config);
  const VocabularyMap& map = *translated.loaded.vocabulary;
  EXPECT_LT(map.pairs().size(), 2960u);
  EXPECT_GT(map.pairs().size(), 2800u);
  EXPECT_GE(map.draft_id(0), 0) << "the end of text, under another name";
  std::vector<int32_t> unsayable;
  for (int32_t id = 0; id < 3072; ++id) {
    if (map.draft_id(id) < 0) unsayable.push_back(id);
  }
  ASSERT_GT(unsayable.size(), 100u);
  ModelProbe probe(config, Role::kDraft);
  const auto continuation = [&](const std::vector<int32_t>& text, int count) {
    TranslatedTokens read;
    read.extend(map, text);
    std::vector<int32_t> ids = read.ids();
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      const auto probs = probe.next_token_probs(ids).back();
      const auto best = std::max_element(
          map.pairs().begin(), map.pairs().end(), [&](const auto& a, const auto& b) {
            return probs[static_cast<size_t>(a.draft_id)] < probs[static_cast<size_t>(b.draft_id)];
          });
      tokens.push_back(best->target_id);
      ids.push_back(best->draft_id);
    }
    return tokens;
  };

  std::vector<int32_t> text = encode(kPrompts[3]);
  DraftRequest request;
  request.opens.push_back({1, greedy(400), text});
  std::mt19937 random(3);
  std::vector<int32_t> last_block;
  size_t num_unsayable = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    std::vector<int32_t> committed(
        last_block.begin(),
        last_block.begin() + static_cast<ptrdiff_t>(random() % (last_block.size() + 1)));
    const bool says = random() % 3 != 0;
    num_unsayable += says ? 0 : 1;
    committed.push_back(says ? static_cast<int32_t>(random() % 3000)
                             : unsayable[random() % unsayable.size()]);
    const auto draft_len = static_cast<int32_t>(random() % 6);
    request.commits = {{1, round, static_cast<int32_t>(text.size()), committed, draft_len}};
    text.insert(text.end(), committed.begin(), committed.end());
    const auto blocks = translated.answer(request);
    request = {};
    ASSERT_EQ(blocks.size(), draft_len > 0 ? 1u : 0u);
    last_block.clear();
    if (blocks.empty()) continue;
    EXPECT_EQ(blocks[0].base_len, static_cast<int32_t>(text.size()));
    last_block = tokens_of(blocks[0]);
    EXPECT_EQ(last_block, continuation(text, draft_len)) << "round " << round;
  }
  EXPECT_GT(num_unsayable, 5u);
}

// A commit whose tokens are nothing to the draft adds nothing to read; it must answer all the same.
TEST(DraftVocabulary, NothingNewToReadIsAnsweredToo) {
  const OtherVocabulary other(kOther);
  RunConfig config = other.config(1, 4);
  Worker translated(config);
  const std::vector<int32_t> prompt = encode("The king said");
  const auto length = static_cast<int32_t>(prompt.size());
  DraftRequest request;
  request.opens.push_back({1, greedy(100), prompt});
  request.commits.push_back({1, 0, length, {}, 3});
  const auto first = translated.answer(request);
  ASSERT_EQ(first.size(), 1u);
  DraftRequest again;
  again.commits.push_back({1, 1, length, {100000}, 3});  // no token of anybody
  const auto second = translated.answer(again);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].tokens, first[0].tokens);
  EXPECT_EQ(second[0].tokens.size(), 3u);
  DraftRequest nothing;
  nothing.opens.push_back({2, greedy(100), {100000}});
  nothing.commits.push_back({2, 0, 1, {100001}, 3});
  const auto third = translated.answer(nothing);
  ASSERT_EQ(third.size(), 1u);
  EXPECT_TRUE(third[0].tokens.empty()) << "nothing to continue";
  EXPECT_EQ(third[0].base_len, 2);
}

// So is a sequence opened anew that the draft has wholly in its KV.
TEST(DraftVocabulary, OpenedAnewWithNothingNewIsAnswered) {
  Worker direct(embedded_config(1, 4));
  const std::vector<int32_t> prompt = encode("The king said");
  const auto length = static_cast<int32_t>(prompt.size());
  DraftRequest request;
  request.opens.push_back({1, greedy(100), prompt});
  EXPECT_TRUE(direct.answer(request).empty()) << "read ahead";
  request.commits.push_back({1, 0, length, {}, 3});
  const auto blocks = direct.answer(request);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].tokens.size(), 3u);
}

// When everything sayable is masked, nothing is proposed.
TEST(DraftVocabulary, NeverProposesWhatItCannotSay) {
  const OtherVocabulary other(kOther);
  Worker translated(other.config(1, 4));
  SamplingParams params = sampled(1.0f, 100);
  params.min_tokens = 50;
  for (const VocabularyMap::Pair& pair : translated.loaded.vocabulary->pairs())
    params.stop_token_ids.push_back(pair.target_id);
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    params.verify_mode = mode;
    DraftRequest request;
    request.opens.push_back({1, params, encode("The king said")});
    request.commits.push_back(
        {1, 0, static_cast<int32_t>(request.opens[0].tokens.size()), {60}, 3});
    const auto blocks = translated.answer(request);
    ASSERT_EQ(blocks.size(), 1u);
    EXPECT_TRUE(blocks[0].tokens.empty());
  }
}

TEST(DraftVocabulary, WithoutTheOptionItIsRefused) {
  const OtherVocabulary other(kOther);
  RunConfig config = other.config(1, 4);
  config.speculative.use_heterogeneous_vocab = false;
  try {
    load_draft(config, {1, true}, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string sentence = error.what();
    EXPECT_NE(sentence.find("not the same tokens: id 0 is '<|endoftext|>'"), std::string::npos)
        << sentence;
    EXPECT_NE(sentence.find("use_heterogeneous_vocab"), std::string::npos) << sentence;
  }
}

// A token id that only the target's larger embedding has ends the drafting of that sequence, not
// the process.
TEST(DraftVocabulary, AnIdWithoutARowIsNotDraftedFor) {
  Worker direct(embedded_config(1, 4));
  ASSERT_EQ(direct.loaded.vocabulary, nullptr);
  DraftRequest request;
  request.opens.push_back({1, greedy(100), {40, 41, 5000}});
  request.commits.push_back({1, 0, 3, {60}, 4});
  request.opens.push_back({2, greedy(100), {40, 41, 50}});
  request.commits.push_back({2, 0, 3, {3072}, 4});
  request.opens.push_back({3, greedy(100), {40, 41, 50}});
  request.commits.push_back({3, 0, 3, {60}, 4});
  const auto blocks = direct.answer(request);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_TRUE(blocks[0].tokens.empty());
  EXPECT_TRUE(blocks[1].tokens.empty());
  EXPECT_EQ(blocks[2].tokens.size(), 4u);
}

std::vector<Ask> asks(bool with_seed) {
  std::vector<Ask> list;
  for (size_t i = 0; i < kPrompts.size(); ++i)
    list.push_back({kPrompts[i], with_seed ? seeded(0.8f, 40 + i, 48) : greedy(48)});
  if (with_seed) {
    list[0].params.top_k = 30;
    list[1].params.repetition_penalty = 1.3f;
    list[2].params.logit_bias = {{300, 4.0f}};
  }
  return list;
}

double acceptance(const std::vector<Outcome>& outcomes) {
  int64_t num_accepted = 0;
  int64_t num_examined = 0;
  for (const Outcome& outcome : outcomes) {
    for (TokenOrigin origin : outcome.origins) {
      num_accepted += origin == TokenOrigin::kAccepted ? 1 : 0;
      num_examined += origin == TokenOrigin::kAccepted || origin == TokenOrigin::kCorrected ? 1 : 0;
    }
  }
  EXPECT_GT(num_examined, 30);
  return static_cast<double>(num_accepted) /
         static_cast<double>(std::max<int64_t>(1, num_examined));
}

TEST(DraftVocabulary, TheTextIsTheTargets) {
  const OtherVocabulary other(kOther);
  for (const bool with_seed : {false, true}) {
    for (const int num_targets : {1, 2}) {
      const std::vector<Outcome> off = run_asks(embedded_config(num_targets, 0), asks(with_seed));
      const std::vector<Outcome> own =
          run_asks(patient(embedded_config(num_targets, 4)), asks(with_seed));
      for (const int draft_len : {1, 4, 8}) {
        const std::vector<Outcome> on =
            run_asks(patient(other.config(num_targets, draft_len)), asks(with_seed));
        ASSERT_EQ(on.size(), off.size());
        for (size_t i = 0; i < on.size(); ++i) {
          EXPECT_EQ(on[i].error, "");
          EXPECT_EQ(on[i].tokens, off[i].tokens) << "prompt " << i << " draft_len " << draft_len;
        }
        if (draft_len != 4) continue;
        // One in twenty tokens cannot be proposed; the rest is the same model.
        std::printf("acceptance %.3f with the target's tokenizer, %.3f with another\n",
                    acceptance(own),
                    acceptance(on));
        EXPECT_GT(acceptance(on), 0.5 * acceptance(own));
      }
    }
  }
}

// Sequences are preempted and prompts cut into chunks: the draft is told less regularly, and its KV
// memory is as short.
TEST(DraftVocabulary, PreemptionAndChunkedPrefill) {
  const OtherVocabulary other(kOther);
  std::vector<Ask> list = asks(true);
  for (Ask& ask : list) ask.params.max_tokens = 120;
  const std::vector<Outcome> off = run_asks(embedded_config(1, 0), list);
  RunConfig config = patient(other.config(1, 4));
  config.max_model_len = 192;
  config.block_size = 4;
  config.max_num_batched_tokens = 16;
  limit_kv_blocks(config, 75);  // 300 tokens for 6 x 140
  double num_preemptions = 0;
  std::vector<Outcome> on;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (const Ask& ask : list)
      streams.push_back(submit(context.engine, context.tokenizer->encode(ask.prompt), ask.params));
    for (const auto& stream : streams) on.push_back(collect(*stream));
    num_preemptions = context.metrics.num_preemptions.value();
  });
  ASSERT_EQ(on.size(), off.size());
  for (size_t i = 0; i < on.size(); ++i) EXPECT_EQ(on[i].tokens, off[i].tokens);
  EXPECT_GT(num_preemptions, 0);
  EXPECT_GT(acceptance(on), 0.2);
}

// The same tokens, but a smaller embedding: the draft is told of the others by their text, and
// nobody has to ask for it.
TEST(DraftVocabulary, TooFewRowsAreNoObstacle) {
  const OtherVocabulary other({.num_extra_rows = -1000});
  RunConfig config = patient(other.config(1, 4));
  config.speculative.use_heterogeneous_vocab = false;
  const LoadedModel loaded = load_draft(config, {1, true}, 1);
  ASSERT_NE(loaded.vocabulary, nullptr);
  EXPECT_EQ(loaded.vocabulary->pairs().size(), 2072u);
  const std::vector<Outcome> off = run_asks(embedded_config(1, 0), asks(true));
  const std::vector<Outcome> on = run_asks(config, asks(true));
  int num_beyond = 0;
  for (size_t i = 0; i < on.size(); ++i) {
    EXPECT_EQ(on[i].tokens, off[i].tokens);
    for (int32_t token : on[i].tokens) num_beyond += token >= 2072 ? 1 : 0;
  }
  EXPECT_GT(num_beyond, 5);
  EXPECT_GT(acceptance(on), 0.2);
}

// The control: with the translation of another vocabulary the draft's words are noise, and hardly
// any stand, though the text is still the target's.
TEST(DraftVocabulary, AWrongTranslationIsSeldomAccepted) {
  const OtherVocabulary other(kOther);
  const std::vector<Outcome> off = run_asks(embedded_config(1, 0), asks(false));
  RunConfig config = patient(other.config(1, 4));
  config.speculative.async_drafting = "off";  // every round is to wait for its draft
  // The embedded tokenizer's names put on the permuted model.
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(model_folder("embedded", Role::kDraft) / file,
                               std::filesystem::path(other.folder()) / file,
                               std::filesystem::copy_options::overwrite_existing);
  const std::vector<Outcome> on = run_asks(config, asks(false));
  for (size_t i = 0; i < on.size(); ++i) EXPECT_EQ(on[i].tokens, off[i].tokens);
  EXPECT_LT(acceptance(on), 0.05);
}

// Real models whose tokenizers have nothing to do with each other: SentencePiece with byte fallback
// and byte level, both ways round.
TEST(DraftVocabulary, RealModelsWithOtherTokenizers) {
  if (data_folder().empty()) GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  const std::string stories = data_folder() + "/models/stories260K";
  for (const auto& [target, draft] :
       {std::pair<std::string, std::string>{stories, "embedded"}, {"embedded", stories}}) {
    std::vector<std::vector<Outcome>> runs;
    for (const int draft_len : {0, 4}) {
      RunConfig config = patient(embedded_config(1, draft_len));
      config.model = target;
      if (draft_len > 0) config.speculative.model = draft;
      config.speculative.use_heterogeneous_vocab = true;
      std::vector<Ask> list = asks(false);
      for (const Ask& ask : asks(true)) list.push_back(ask);
      runs.push_back(run_asks(config, list));
    }
    ASSERT_EQ(runs[0].size(), runs[1].size());
    for (size_t i = 0; i < runs[0].size(); ++i) {
      EXPECT_EQ(runs[1][i].error, "");
      EXPECT_EQ(runs[1][i].tokens, runs[0][i].tokens) << target << " prompt " << i;
    }
    std::printf("target %s, draft %s: acceptance %.3f\n",
                std::filesystem::path(target).filename().c_str(),
                std::filesystem::path(draft).filename().c_str(),
                acceptance(runs[1]));
    EXPECT_GT(acceptance(runs[1]), 0.0);
  }
}

}  // namespace
}  // namespace outrider::test
