// Asynchronous drafting, the draft worker by itself: every block that it prepares is, token for
// token and candidate for candidate, the one that a synchronous worker makes when it is given that
// text and round; for every rule, outcomes hit and missed, small KV memory; and no KV block is ever
// lost.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "models/forward/transformer.h"
#include "models/weights/weights.h"
#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/loading/model_names.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

constexpr int32_t kBlockSize = 4;

struct TestModel {
  std::unique_ptr<ops::Context> context = std::make_unique<ops::Context>(1);
  std::unique_ptr<TargetGroup> group = make_solo_group();
  std::unique_ptr<Transformer> model;
};

// The embedded draft with its own KV memory.
TestModel make_model(int32_t num_blocks) {
  static const ModelConfig config = model_config_of("embedded", Role::kDraft);
  static const ModelShard shard = shard_model(config, 0, 1);
  static const std::shared_ptr<const Weights> weights =
      load_weights(model_folder("embedded", Role::kDraft), config, shard);
  TestModel made;
  const TransformerOptions options{
      .block_size = kBlockSize, .num_blocks = num_blocks, .max_rows = 256, .max_logit_rows = 200};
  made.model =
      std::make_unique<Transformer>(config, weights, shard, options, *made.group, *made.context);
  return made;
}

struct Script {
  VerifyMode rule = VerifyMode::kBlock;
  float temperature = 0.9f;
  AsyncDrafting mode = AsyncDrafting::kCache;
  int32_t num_blocks = 400;
  int32_t max_branches = 24;
  int num_sequences = 3;
  int num_rounds = 25;
  uint32_t seed = 1;
  double checked_share = 0.3;  // of the prepared blocks
};

// A block's name: sampling round, length of the text before it, last token of that.
using BlockKey = std::tuple<uint32_t, int32_t, int32_t>;

struct FakeSequence {
  uint64_t id = 0;
  SamplingParams params;
  std::vector<int32_t> prompt;
  std::vector<int32_t> text;
  int32_t num_told = 0;
  uint32_t round = 0;
  int32_t in_flight = 0;
  std::map<BlockKey, std::vector<DraftToken>> blocks;
  std::map<BlockKey, std::vector<int32_t>> text_before;

  int32_t size() const { return static_cast<int32_t>(text.size()); }
  std::vector<DraftToken> at_hand() const {
    const auto found = blocks.find({round, size(), text.back()});
    return found == blocks.end() ? std::vector<DraftToken>() : found->second;
  }
};

// Plays the coordinator with random outcomes and keeps what the worker sends.
class Rehearsal {
 public:
  explicit Rehearsal(const Script& script)
      : script_(script),
        random_(script.seed),
        made_(make_model(script.num_blocks)),
        reference_made_(make_model(2000)),
        worker_(*made_.model, options()),
        reference_(*reference_made_.model, options()) {
    for (int i = 0; i < script.num_sequences; ++i) sequences_.push_back(make_sequence());
  }

  void run() {
    for (int round = 0; round < script_.num_rounds; ++round) {
      for (FakeSequence& sequence : sequences_) wait_for_block(sequence);
      begin_rounds();
      run_steps(pick(0, 12));
      for (FakeSequence& sequence : sequences_) decide(sequence);
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(worker_.fault(), "");
    }
  }

  int num_hits = 0;
  int num_misses = 0;
  int num_checked = 0;
  int num_candidates = 0;
  size_t most_branches = 0;
  std::set<int32_t> tokens_seen;
  std::set<int32_t> accepted_seen;
  DraftWorker& worker() { return worker_; }

  void close_all() {
    DraftRequest request;
    for (const FakeSequence& sequence : sequences_) request.closes.push_back(sequence.id);
    worker_.take(request);
  }

 private:
  DraftWorker::Options options() const {
    return {.target_vocab_size = 3072,
            .max_branches = script_.max_branches,
            .checks = {.books = true, .poison = true}};
  }
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  FakeSequence make_sequence() {
    FakeSequence sequence;
    sequence.id = next_id_++;
    SamplingParams& params = sequence.params;
    params.temperature = script_.temperature;
    params.verify_mode = script_.rule;
    params.noise_seed = random_();
    params.max_tokens = 1000;
    params.async_drafting = script_.mode;
    if (sequence.id % 3 == 0) {
      params.repetition_penalty = 1.3f;
      params.frequency_penalty = 0.3f;
      params.logit_bias = {{50, 1.0f}, {300, -2.0f}};
    }
    if (sequence.id % 3 == 1) {
      params.top_p = 0.9f;
      params.presence_penalty = 0.5f;
      params.bad_words = {{300}, {40, 41}};
    }
    const int length = pick(2, 40);
    for (int i = 0; i < length; ++i) sequence.prompt.push_back(pick(20, 2000));
    sequence.text = sequence.prompt;
    DraftRequest request;
    request.opens.push_back({sequence.id, params, sequence.prompt});
    worker_.take(request);
    sequence.num_told = sequence.size();
    return sequence;
  }

  DraftCommit commit_of(FakeSequence& sequence, int32_t in_flight) {
    DraftCommit commit{.sequence_id = sequence.id,
                       .round = sequence.round,
                       .num_tokens_before = sequence.num_told,
                       .tokens = {sequence.text.begin() + sequence.num_told, sequence.text.end()},
                       .draft_len = pick(1, 7),
                       .in_flight = in_flight};
    sequence.num_told = sequence.size();
    return commit;
  }

  // Sometimes somebody waits for the block, for all of it or for some steps.
  void wait_for_block(FakeSequence& sequence) {
    if (pick(0, 2) != 0 && !sequence.at_hand().empty()) return;
    DraftRequest request;
    request.commits.push_back(commit_of(sequence, -1));
    const int32_t draft_len = request.commits[0].draft_len;
    worker_.take(request);
    if (pick(0, 1) == 0) return run_steps(pick(0, 4));
    run_steps(1000);
    EXPECT_GE(sequence.at_hand().size(), static_cast<size_t>(draft_len))
        << "a block that is waited for is never short of memory";
  }

  void begin_rounds() {
    DraftRequest request;
    for (FakeSequence& sequence : sequences_) {
      sequence.in_flight = pick(0, static_cast<int>(sequence.at_hand().size()));
      request.commits.push_back(commit_of(sequence, sequence.in_flight));
    }
    worker_.take(request);
  }

  void run_steps(int most) {
    for (int i = 0; i < most && worker_.has_work(); ++i) {
      worker_.step();
      if (auto reply = worker_.take_reply()) {
        for (const DraftBlock& block : reply->blocks) keep(block);
      }
      for (const auto& [id, copy] : worker_.sequences().all())
        most_branches = std::max(most_branches, copy.branches.size());
    }
    if (auto reply = worker_.take_reply()) {
      for (const DraftBlock& block : reply->blocks) keep(block);
    }
  }

  void keep(const DraftBlock& block) {
    for (FakeSequence& sequence : sequences_) {
      if (sequence.id == block.sequence_id) keep(sequence, block);
    }
  }

  void keep(FakeSequence& sequence, const DraftBlock& block) {
    std::vector<int32_t> text = sequence.text;
    const bool told = sequence.num_told == sequence.size();
    // The worker has not heard of the outcome yet: what does not fit it is late.
    const bool fits = block.round == sequence.round && block.base_len == sequence.size() &&
                      (block.guess == -1 || block.guess == text.back());
    if (!told && !fits) return;
    if (block.round == sequence.round) {
      ASSERT_EQ(block.base_len, sequence.size());
      ASSERT_TRUE(block.guess == -1 || block.guess == text.back());
    } else {
      ASSERT_EQ(block.round, sequence.round + 1);
      ASSERT_GE(block.guess, 0);
      const int32_t num_accepted = block.base_len - sequence.size() - 1;
      ASSERT_GE(num_accepted, 0);
      ASSERT_LE(num_accepted, sequence.in_flight);
      const std::vector<DraftToken> drafted = sequence.at_hand();
      for (int32_t i = 0; i < num_accepted; ++i)
        text.push_back(drafted[static_cast<size_t>(i)].token);
      text.push_back(block.guess);
    }
    const BlockKey key = {block.round, block.base_len, text.back()};
    std::vector<DraftToken>& known = sequence.blocks[key];
    ASSERT_EQ(block.first, static_cast<int32_t>(known.size())) << "a gap, or a block begun twice";
    known.insert(known.end(), block.tokens.begin(), block.tokens.end());
    sequence.text_before[key] = text;
  }

  // Makes up the outcome: one that was prepared, all and the bonus draft token, or any other.
  void decide(FakeSequence& sequence) {
    check_blocks(sequence);
    const std::vector<DraftToken> drafted = sequence.at_hand();
    std::vector<BlockKey> prepared;
    for (const auto& [key, tokens] : sequence.blocks) {
      if (std::get<0>(key) == sequence.round + 1) prepared.push_back(key);
    }
    int32_t num_accepted = pick(0, sequence.in_flight);
    int32_t next = pick(20, 500);
    if (!prepared.empty() && pick(0, 3) != 0) {
      const auto& [round, base_len, guess] =
          prepared[static_cast<size_t>(pick(0, static_cast<int>(prepared.size()) - 1))];
      num_accepted = base_len - sequence.size() - 1;
      next = guess;
    } else if (static_cast<int32_t>(drafted.size()) > sequence.in_flight && pick(0, 1) == 0) {
      num_accepted = sequence.in_flight;
      next = drafted[static_cast<size_t>(num_accepted)].token;
    }
    accepted_seen.insert(num_accepted);
    for (int32_t i = 0; i < num_accepted; ++i)
      sequence.text.push_back(drafted[static_cast<size_t>(i)].token);
    sequence.text.push_back(next);
    ++sequence.round;
    std::erase_if(sequence.blocks, [&](const auto& entry) {
      return entry.first != BlockKey{sequence.round, sequence.size(), next};
    });
    ++(sequence.blocks.empty() ? num_misses : num_hits);
    if (sequence.size() < 110) return;
    DraftRequest request;
    request.closes.push_back(sequence.id);
    worker_.take(request);
    sequence = make_sequence();
  }

  void check_blocks(const FakeSequence& sequence) {
    for (const auto& [key, tokens] : sequence.blocks) {
      if (tokens.empty() || std::uniform_real_distribution<>()(random_) > script_.checked_share)
        continue;
      const bool fresh = pick(0, 15) == 0;
      TestModel made = fresh ? make_model(2000) : TestModel();
      std::optional<DraftWorker> other;
      if (fresh) other.emplace(*made.model, options());
      const std::vector<int32_t>& text = sequence.text_before.at(key);
      const std::vector<DraftToken> expected =
          block_of(fresh ? *other : reference_, sequence, text, std::get<0>(key), tokens.size());
      ASSERT_EQ(tokens, expected) << "round " << std::get<0>(key) << " behind " << text.size()
                                  << " tokens";
      ++num_checked;
      for (const DraftToken& token : tokens) {
        tokens_seen.insert(token.token);
        num_candidates += static_cast<int>(token.candidates.size());
      }
    }
  }

  static std::vector<DraftToken> block_of(DraftWorker& worker,
                                          const FakeSequence& sequence,
                                          const std::vector<int32_t>& text,
                                          uint32_t round,
                                          size_t draft_len) {
    DraftRequest request;
    request.opens.push_back({sequence.id, sequence.params, sequence.prompt});
    request.opens.back().params.async_drafting = AsyncDrafting::kOff;
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(sequence.prompt.size());
    request.commits.push_back({.sequence_id = sequence.id,
                               .round = round,
                               .num_tokens_before = static_cast<int32_t>(sequence.prompt.size()),
                               .tokens = {begin, text.end()},
                               .draft_len = static_cast<int32_t>(draft_len)});
    worker.take(request);
    for (int i = 0; i < 1000 && worker.has_work(); ++i) worker.step();
    const auto reply = worker.take_reply();
    if (!reply || reply->blocks.size() != 1) return {};
    return reply->blocks[0].tokens;
  }

  const Script script_;
  std::mt19937 random_;
  TestModel made_;
  TestModel reference_made_;
  DraftWorker worker_;
  DraftWorker reference_;
  uint64_t next_id_ = 1;
  std::vector<FakeSequence> sequences_;
};

void expect_all_kinds(const Rehearsal& rehearsal) {
  // How much is prepared depends on how long steps take.
  EXPECT_GT(rehearsal.num_hits, 10);
  EXPECT_GT(rehearsal.num_misses, 2);
  EXPECT_GT(rehearsal.num_checked, 30);
  EXPECT_GT(rehearsal.tokens_seen.size(), 40u);
  EXPECT_GT(rehearsal.accepted_seen.size(), 2u);
}

class AsyncDraftingRules : public ::testing::TestWithParam<std::pair<VerifyMode, float>> {};

TEST_P(AsyncDraftingRules, EveryPreparedBlockIsTheSynchronousOne) {
  const auto [rule, temperature] = GetParam();
  Rehearsal rehearsal({.rule = rule, .temperature = temperature});
  rehearsal.run();
  expect_all_kinds(rehearsal);
  EXPECT_GT(rehearsal.most_branches, 5u);
  const bool sampled = rule == VerifyMode::kStandard || rule == VerifyMode::kBlock;
  EXPECT_EQ(rehearsal.num_candidates > 0, sampled && temperature > 0);
}

TEST_P(AsyncDraftingRules, SmallMemoryDropsBranchesAndNothingElse) {
  const auto [rule, temperature] = GetParam();
  // Three main chains of up to 122 positions fit, and a few blocks more.
  Rehearsal rehearsal({.rule = rule, .temperature = temperature, .num_blocks = 100, .seed = 7});
  rehearsal.run();
  expect_all_kinds(rehearsal);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         AsyncDraftingRules,
                         ::testing::Values(std::pair(VerifyMode::kBlock, 0.0f),
                                           std::pair(VerifyMode::kCoupled, 0.9f),
                                           std::pair(VerifyMode::kStandard, 0.9f),
                                           std::pair(VerifyMode::kBlock, 0.9f)));

TEST(AsyncDraftWorker, TheChainPreparesOneBlock) {
  Rehearsal rehearsal({.mode = AsyncDrafting::kChain, .num_rounds = 40});
  rehearsal.run();
  EXPECT_EQ(rehearsal.most_branches, 1u);
  EXPECT_GT(rehearsal.num_hits, 10);
  EXPECT_GT(rehearsal.num_checked, 20);
}

TEST(AsyncDraftWorker, ThousandRoundsLoseNoBlock) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u}) {
    Rehearsal rehearsal({.num_blocks = 100, .num_rounds = 200, .seed = seed, .checked_share = 0});
    rehearsal.run();
    EXPECT_GT(rehearsal.num_hits, 100);
    rehearsal.close_all();
    EXPECT_EQ(rehearsal.worker().fault(), "");
    EXPECT_TRUE(rehearsal.worker().sequences().all().empty());
  }
}

struct Alone {
  TestModel made = make_model(200);
  DraftWorker worker{*made.model, {.target_vocab_size = 3072}};

  void tell(const DraftCommit& commit) {
    DraftRequest request;
    request.serial = ++serial;
    request.commits.push_back(commit);
    worker.take(request);
  }
  void open() {
    DraftRequest request;
    request.opens.push_back({1, greedy(100), {40, 41, 60}});
    request.opens.back().params.async_drafting = AsyncDrafting::kCache;
    worker.take(request);
  }
  std::optional<DraftReply> run() {
    for (int i = 0; i < 1000 && worker.has_work(); ++i) worker.step();
    return worker.take_reply();
  }
  uint64_t serial = 0;
};

TEST(AsyncDraftWorker, StaleAndMalformedCommitsLeaveTheBooksRight) {
  Alone alone;
  alone.open();
  alone.tell({1, 0, 3, {}, 4, 0});
  ASSERT_TRUE(alone.run().has_value());
  EXPECT_FALSE(alone.worker.sequences().all().at(1).branches.empty());
  alone.tell({1, 3, 3, {77}, 4, 2});  // more is in flight than was ever drafted: it is drafted now
  ASSERT_TRUE(alone.run().has_value());
  EXPECT_GE(alone.worker.sequences().all().at(1).main_chain.num_drafted(), 3);
  alone.tell({1, 2, 4, {78}, 4, 0});  // a round that is over
  EXPECT_EQ(alone.worker.sequences().all().at(1).tokens.size(), 4u);
  EXPECT_EQ(alone.worker.fault(), "");
  alone.tell({1, 4, 9, {78}, 4, -1});  // a gap
  auto reply = alone.run();
  ASSERT_TRUE(reply.has_value());
  ASSERT_EQ(reply->blocks.size(), 1u);
  EXPECT_TRUE(reply->blocks[0].tokens.empty()) << "there is nothing to wait for";
  EXPECT_TRUE(alone.worker.sequences().all().at(1).branches.empty());
  alone.tell({2, 0, 0, {5}, 4, 1});  // never opened
  EXPECT_TRUE(alone.run().has_value());
  EXPECT_EQ(alone.worker.fault(), "");
}

TEST(AsyncDraftWorker, CountsItsWorkAndAnswersEveryRequest) {
  Alone alone;
  alone.open();
  alone.run();
  alone.tell({1, 0, 3, {}, 4, 0});
  auto reply = alone.run();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->serial, 1u);
  EXPECT_GE(reply->num_steps, 5u) << "the bonus draft and four tokens behind it";
  EXPECT_GT(reply->num_rows, reply->num_steps) << "branches share steps";
  alone.worker.record_idle(123);
  // The same again: all of it was said, and the answer says that this was heard.
  alone.tell({1, 0, 3, {}, 0, -1});
  alone.tell({1, 0, 3, {}, 1, -1});
  reply = alone.run();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->serial, 3u);
  EXPECT_EQ(reply->idle_us, 123u);
  EXPECT_FALSE(alone.run().has_value());
}

TEST(AsyncDraftWorker, OffRidesNothing) {
  TestModel made = make_model(200);
  DraftWorker worker(*made.model, {.target_vocab_size = 3072});
  DraftRequest request;
  request.opens.push_back({1, greedy(100), {40, 41, 60}});
  request.commits.push_back({1, 0, 3, {77}, 4, 2});
  worker.take(request);
  for (int i = 0; i < 100 && worker.has_work(); ++i) worker.step();
  EXPECT_FALSE(worker.take_reply().has_value());
  EXPECT_TRUE(worker.sequences().all().at(1).branches.empty());
  DraftRequest next;
  next.commits.push_back({1, 1, 4, {78}, 4});
  worker.take(next);
  worker.step();
  EXPECT_FALSE(worker.take_reply().has_value()) << "blocks are sent whole";
  for (int i = 0; i < 100 && worker.has_work(); ++i) worker.step();
  const auto reply = worker.take_reply();
  ASSERT_TRUE(reply.has_value());
  ASSERT_EQ(reply->blocks.size(), 1u);
  EXPECT_EQ(reply->blocks[0].tokens.size(), 4u);
}

}  // namespace
}  // namespace outrider::test
