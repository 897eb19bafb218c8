// The draft worker by itself: its blocks are what its model would write, after commits that agree,
// disagree, leave gaps, and when its KV memory is short.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/loading/model_probe.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

struct WorkerTest : ::testing::Test {
  RunConfig config = embedded_config(1, 4);
  RankLayout layout{1, true};
  LoadedModel loaded;
  std::unique_ptr<DraftWorker> worker;
  std::unique_ptr<ModelProbe> probe;

  void SetUp() override { load(); }
  void load() {
    loaded = load_draft(config, layout, 1);
    worker = std::make_unique<DraftWorker>(
        *loaded.model,
        DraftWorker::Options{.target_vocab_size = loaded.model->config().vocab_size});
    probe = std::make_unique<ModelProbe>(config, Role::kDraft);
  }

  std::vector<int32_t> greedy_continuation(std::vector<int32_t> tokens, int count) {
    std::vector<int32_t> continuation;
    for (int i = 0; i < count; ++i) {
      const auto probs = probe->next_token_probs(tokens).back();
      continuation.push_back(
          static_cast<int32_t>(std::max_element(probs.begin(), probs.end()) - probs.begin()));
      tokens.push_back(continuation.back());
    }
    return continuation;
  }

  std::vector<DraftBlock> run() {
    std::vector<DraftBlock> blocks;
    for (int i = 0; i < 1000 && worker->has_work(); ++i) worker->step();
    EXPECT_FALSE(worker->has_work());
    if (auto reply = worker->take_reply()) blocks = reply->blocks;
    return blocks;
  }

  static std::vector<int32_t> tokens_of(const DraftBlock& block) {
    std::vector<int32_t> tokens;
    for (const DraftToken& token : block.tokens) tokens.push_back(token.token);
    return tokens;
  }

  static SequenceStart open(uint64_t id, std::vector<int32_t> tokens) {
    return {id, greedy(100), std::move(tokens)};
  }
};

TEST_F(WorkerTest, BlocksFollowTheModelThroughRollbacks) {
  std::vector<int32_t> tokens = {40, 41, 60, 90, 120, 200, 33};
  DraftRequest request;
  request.opens.push_back(open(1, tokens));
  worker->take(request);
  EXPECT_TRUE(run().empty()) << "an announced prompt is read, not continued";

  // Commits: everything stands, nothing stands, some stand; then without asking; each block must
  // fit the text so far.
  std::vector<int32_t> last_block;
  for (uint32_t round = 0; round < 12; ++round) {
    const size_t num_agreeing = last_block.empty() ? 0 : (round * 3) % (last_block.size() + 1);
    std::vector<int32_t> committed(last_block.begin(),
                                   last_block.begin() + static_cast<ptrdiff_t>(num_agreeing));
    committed.push_back(static_cast<int32_t>(50 + 7 * round));
    DraftCommit commit{1,
                       round,
                       static_cast<int32_t>(tokens.size()),
                       committed,
                       static_cast<int32_t>(1 + round % 5)};
    tokens.insert(tokens.end(), committed.begin(), committed.end());
    DraftRequest next;
    next.commits.push_back(commit);
    worker->take(next);
    const std::vector<DraftBlock> blocks = run();
    ASSERT_EQ(blocks.size(), 1u);
    EXPECT_EQ(blocks[0].round, round);
    EXPECT_EQ(blocks[0].base_len, static_cast<int32_t>(tokens.size()));
    last_block = tokens_of(blocks[0]);
    EXPECT_EQ(last_block, greedy_continuation(tokens, commit.draft_len)) << "round " << round;
  }
}

TEST_F(WorkerTest, ACommitInTheMiddleOfABlockReplacesIt) {
  DraftRequest request;
  request.opens.push_back(open(1, {40, 41, 60}));
  request.commits.push_back({1, 0, 3, {77}, 8});
  worker->take(request);
  worker->step();
  worker->step();
  DraftRequest next;
  next.commits.push_back({1, 1, 4, {99}, 3});
  worker->take(next);
  const std::vector<DraftBlock> blocks = run();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].round, 1u);
  EXPECT_EQ(tokens_of(blocks[0]), greedy_continuation({40, 41, 60, 77, 99}, 3));
}

TEST_F(WorkerTest, AGapIsAnsweredWithNothingUntilOpenedAnew) {
  DraftRequest request;
  request.opens.push_back(open(1, {40, 41, 60}));
  request.commits.push_back({1, 0, 5, {77}, 4});  // says there were 5 tokens; there are 3
  request.commits.push_back({2, 0, 5, {77}, 4});  // never opened
  worker->take(request);
  std::vector<DraftBlock> blocks = run();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_TRUE(blocks[0].tokens.empty());
  EXPECT_TRUE(blocks[1].tokens.empty());
  EXPECT_EQ(blocks[0].base_len, 6);

  DraftRequest again;
  again.opens.push_back(open(1, {40, 41, 60, 61, 62, 77}));
  again.commits.push_back({1, 1, 6, {78}, 2});
  worker->take(again);
  blocks = run();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(tokens_of(blocks[0]), greedy_continuation({40, 41, 60, 61, 62, 77, 78}, 2));
}

TEST_F(WorkerTest, ManySequencesInOneBatchAreEachTheirOwn) {
  DraftRequest request;
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t id = 1; id <= 8; ++id) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < static_cast<int>(5 * id); ++i)
      prompt.push_back(static_cast<int32_t>((i * 37 + id * 11) % 500 + 20));
    prompts.push_back(prompt);
    request.opens.push_back(open(id, prompt));
    request.commits.push_back(
        {id, 0, static_cast<int32_t>(prompt.size()), {static_cast<int32_t>(30 + id)}, 4});
    prompts.back().push_back(static_cast<int32_t>(30 + id));
  }
  worker->take(request);
  const std::vector<DraftBlock> blocks = run();
  ASSERT_EQ(blocks.size(), 8u);
  for (const DraftBlock& block : blocks) {
    EXPECT_EQ(tokens_of(block), greedy_continuation(prompts[block.sequence_id - 1], 4))
        << block.sequence_id;
  }
}

TEST_F(WorkerTest, ShortMemoryTakesFromThoseWhoWantNothing) {
  config.max_num_seqs = 1;
  config.max_model_len = 64;
  load();
  std::vector<int32_t> prompt;
  for (int i = 0; i < 50; ++i) prompt.push_back(30 + i * 3);
  for (uint64_t id = 1; id <= 5; ++id) {
    DraftRequest request;
    request.opens.push_back(open(id, prompt));
    request.commits.push_back({id, 0, 50, {static_cast<int32_t>(200 + id)}, 3});
    worker->take(request);
    const std::vector<DraftBlock> blocks = run();
    ASSERT_EQ(blocks.size(), 1u);
    std::vector<int32_t> tokens = prompt;
    tokens.push_back(static_cast<int32_t>(200 + id));
    EXPECT_EQ(tokens_of(blocks[0]), greedy_continuation(tokens, 3)) << "sequence " << id;
  }
  // Two at once do not fit: the second gets an answer all the same, an empty or short one.
  DraftRequest both;
  both.commits.push_back({1, 1, 51, {7}, 3});
  both.commits.push_back({2, 1, 51, {7}, 3});
  worker->take(both);
  EXPECT_EQ(run().size(), 2u);
}

// Whoever takes tokens as they come waits for all it asked for, unless it is told of the end.
TEST_F(WorkerTest, AChainThatHasNoRoomForMoreSaysSoInTheSameReply) {
  config.max_num_seqs = 1;
  config.max_model_len = 64;
  load();
  std::vector<int32_t> prompt;
  for (int i = 0; i < 50; ++i) prompt.push_back(30 + i * 3);
  DraftRequest request;
  request.opens.push_back(open(1, prompt));
  request.opens.back().params.async_drafting = AsyncDrafting::kChain;
  request.commits.push_back({1, 0, 50, {201}, 10000});
  worker->take(request);
  const std::vector<DraftBlock> blocks = run();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_GT(blocks[0].tokens.size(), 0u);
  EXPECT_TRUE(blocks[1].tokens.empty());
  EXPECT_EQ(blocks[1].first, static_cast<int32_t>(blocks[0].tokens.size()));
}

// A draft that serves again was not told which sequences have ended meanwhile.
TEST_F(WorkerTest, WhatIsForgottenLeavesNothingBehindAndMayComeAgain) {
  const std::vector<int32_t> tokens = {40, 41, 60, 90, 120, 200, 33};
  DraftRequest request;
  request.opens = {open(1, tokens), open(2, tokens)};
  request.commits = {{1, 0, static_cast<int32_t>(tokens.size()), {}, 4}};
  worker->take(request);
  worker->forget_all();
  EXPECT_TRUE(worker->sequences().all().empty());
  EXPECT_EQ(worker->fault(), "");
  EXPECT_FALSE(worker->has_work());
  EXPECT_FALSE(worker->take_reply()) << "nobody waits for that any more";
  worker->take(request);
  const std::vector<DraftBlock> blocks = run();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(tokens_of(blocks[0]), greedy_continuation(tokens, 4));
}

}  // namespace
}  // namespace outrider::test
