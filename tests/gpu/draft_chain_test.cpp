// Draft steps that the device makes in one piece, choosing each token itself: the blocks are those
// of steps made one by one, whatever is accepted of them, and the steps that cannot be chained are
// not.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/loading/model_loader.h"
#include "tests/gpu/job_case.h"

namespace outrider::test {
namespace {

RunConfig draft_config(bool enforce_eager) {
  RunConfig config = embedded_config(1, 7);
  config.device = "cuda";
  config.enforce_eager = enforce_eager;
  config.max_model_len = 160;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.kv_cache_memory_bytes = 8 << 20;
  return config;
}

// A worker with a model of its own, which is asked for blocks.
struct Side {
  explicit Side(bool chains_steps, bool enforce_eager = false)
      : loaded(load_draft(draft_config(enforce_eager), {1, true}, 1)),
        worker(*loaded.model,
               {.target_vocab_size = loaded.model->config().vocab_size,
                .chains_steps = chains_steps,
                .checks = {.books = true}}) {}

  std::vector<DraftBlock> answer(const DraftRequest& request) {
    worker.take(request);
    std::vector<DraftBlock> blocks;
    while (worker.has_work()) {
      worker.step();
      ++num_calls;
      if (auto reply = worker.take_reply()) {
        num_steps += reply->num_steps;
        for (DraftBlock& block : reply->blocks) blocks.push_back(std::move(block));
      }
    }
    EXPECT_EQ(worker.fault(), "");
    return blocks;
  }

  std::vector<std::vector<int32_t>> guesses(uint64_t id) {
    std::vector<std::vector<int32_t>> all;
    for (const Guesses& others : worker.sequences().all().at(id).main_chain.others) {
      all.emplace_back(others.tokens().begin(), others.tokens().end());
      num_guesses += others.tokens().size();
    }
    return all;
  }

  LoadedModel loaded;
  DraftWorker worker;
  int num_calls = 0;
  size_t num_guesses = 0;
  uint32_t num_steps = 0;
};

struct Text {
  uint64_t id = 0;
  SamplingParams params;
  std::vector<int32_t> tokens;
  size_t num_told = 0;
  std::vector<int32_t> drafted;
};

// By sequence: the tokens of its block, put together from however many messages.
std::map<uint64_t, std::vector<DraftToken>> tokens_of(const std::vector<DraftBlock>& blocks) {
  std::map<uint64_t, std::vector<DraftToken>> tokens;
  for (const DraftBlock& block : blocks) {
    std::vector<DraftToken>& all = tokens[block.sequence_id];
    EXPECT_EQ(block.first, static_cast<int32_t>(all.size()));
    all.insert(all.end(), block.tokens.begin(), block.tokens.end());
  }
  return tokens;
}

// Rounds of urgent blocks of which parts are accepted, told to both sides alike. What may come in
// the place of their tokens, by which branches are chosen, is the same too.
void expect_same_blocks(Side& chained, Side& single, std::vector<Text> texts, unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  DraftRequest request;
  for (Text& text : texts) {
    for (int i = pick(2, 30); i > 0; --i) text.tokens.push_back(pick(20, 2000));
    request.opens.push_back({text.id, text.params, text.tokens});
    text.num_told = text.tokens.size();
  }
  size_t num_tokens = 0;
  for (uint32_t round = 1; round <= 6; ++round) {
    for (Text& text : texts) {
      for (int i = pick(0, static_cast<int>(text.drafted.size())); i > 0; --i) {
        text.tokens.push_back(text.drafted[text.tokens.size() - text.num_told]);
      }
      text.tokens.push_back(pick(20, 2000));
      const auto told = static_cast<std::ptrdiff_t>(text.num_told);
      request.commits.push_back({.sequence_id = text.id,
                                 .round = round,
                                 .num_tokens_before = static_cast<int32_t>(text.num_told),
                                 .tokens = {text.tokens.begin() + told, text.tokens.end()},
                                 .draft_len = pick(1, 7)});
      text.num_told = text.tokens.size();
    }
    const auto found = tokens_of(chained.answer(request));
    ASSERT_EQ(found, tokens_of(single.answer(request))) << "round " << round;
    for (Text& text : texts) {
      EXPECT_EQ(chained.guesses(text.id), single.guesses(text.id));
      text.drafted.clear();
      for (const DraftToken& token : found.at(text.id)) text.drafted.push_back(token.token);
      num_tokens += text.drafted.size();
    }
    request = {};
  }
  EXPECT_GT(num_tokens, 6 * texts.size());
}

using DraftChain = GpuJobs;

SamplingParams with_noise(SamplingParams params) {
  params.noise_seed = 77;
  return params;
}

TEST_F(DraftChain, BlocksAreThoseOfStepsMadeOneByOne) {
  for (const auto mode : {AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache}) {
    Side chained(true);
    Side single(false);
    std::vector<Text> texts = {{.id = 1, .params = greedy(200)},
                               {.id = 2, .params = with_noise(seeded(0.8f, 7, 200))},
                               {.id = 3, .params = with_noise(seeded(1.4f, 9, 200))}};
    for (Text& text : texts) text.params.async_drafting = mode;
    expect_same_blocks(chained, single, texts, 3);
    EXPECT_LT(chained.num_calls, single.num_calls);
    EXPECT_EQ(chained.num_guesses > 100, mode == AsyncDrafting::kCache);
    EXPECT_GT(chained.num_steps, static_cast<uint32_t>(chained.num_calls));
  }
}

TEST_F(DraftChain, LaunchedOneByOneToo) {
  Side chained(true, true);
  Side single(false);
  expect_same_blocks(chained, single, {{.id = 1, .params = with_noise(seeded(0.7f, 5, 200))}}, 4);
  EXPECT_LT(chained.num_calls, single.num_calls);
}

TEST_F(DraftChain, WorksWhereTheDeviceIsLate) {
  const gpu::LateWork late;
  Side chained(true);
  Side single(false);
  expect_same_blocks(chained, single, {{.id = 1, .params = greedy(200)}}, 5);
}

// Edits, filters, masks and lists of candidates are the host's: not one step is chained.
TEST_F(DraftChain, WhatTheHostMustSeeIsNotChained) {
  SamplingParams penal = greedy(200);
  penal.repetition_penalty = 1.3f;
  SamplingParams filtered = with_noise(seeded(0.8f, 7, 200));
  filtered.top_p = 0.9f;
  SamplingParams masked = greedy(200);
  masked.bad_words = {{300}, {40, 41}};
  SamplingParams listed = with_noise(sampled(0.8f, 200));
  for (const SamplingParams& params : {penal, filtered, masked, listed}) {
    Side chained(true);
    Side single(false);
    expect_same_blocks(chained, single, {{.id = 1, .params = params}}, 6);
    EXPECT_EQ(chained.num_calls, single.num_calls);
  }
}

}  // namespace
}  // namespace outrider::test
