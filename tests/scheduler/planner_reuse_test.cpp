// Prefix reuse in rounds written out by hand: what is reused, when it becomes reusable, and what
// failures and preemption do to it. The random lives are in planner_random_test.cpp.
#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/batching/planner.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

PlannerConfig config_of(int32_t num_blocks, int32_t max_rows = 64) {
  PlannerConfig config;
  config.block_size = 4;
  config.num_blocks = num_blocks;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = max_rows;
  config.max_model_len = 64;
  config.vocab_size = 1000;
  return config;
}

Tokens text_of(int32_t size) {
  Tokens tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

// A planner whose ranks answer token 500 + position.
class Bench {
 public:
  explicit Bench(const PlannerConfig& config) : planner(config) {}

  std::shared_ptr<ResultStream> add(uint64_t id,
                                    Tokens prompt,
                                    int32_t max_tokens,
                                    bool prompt_logprobs = false,
                                    const std::string& cache_salt = {}) {
    Request request;
    request.id = id;
    request.prompt = std::move(prompt);
    request.params.max_tokens = max_tokens;
    request.params.prompt_logprobs = prompt_logprobs;
    request.cache_salt = cache_salt;
    request.stream = std::make_shared<ResultStream>();
    std::shared_ptr<ResultStream> stream = request.stream;
    planner.add(std::move(request));
    return stream;
  }

  RoundPlan step(uint64_t failing = 0) {
    RoundPlan plan = planner.plan();
    RoundDecision decision;
    for (const SequencePlan& rows : plan.sequences) {
      SequenceDecision made;
      made.sequence_id = rows.sequence_id;
      made.failed = rows.sequence_id == failing;
      if (!made.failed) made.next_token = 500 + rows.first_position + rows.num_committed_rows;
      decision.sequences.push_back(made);
    }
    planner.apply(plan, decision);
    EXPECT_EQ(planner.fault(), "");
    return plan;
  }

  Planner planner;
};

const SequencePlan& rows_of(const RoundPlan& plan, uint64_t id) {
  for (const SequencePlan& rows : plan.sequences) {
    if (rows.sequence_id == id) return rows;
  }
  ADD_FAILURE() << "sequence " << id << " is not planned";
  static const SequencePlan nothing;
  return nothing;
}

TEST(PlannerReuse, TheSecondComputesOnlyWhatIsNew) {
  Bench bench(config_of(16));
  bench.add(1, text_of(14), 10);
  const RoundPlan first = bench.step();
  EXPECT_EQ(rows_of(first, 1).num_committed_rows, 14);
  Tokens longer = text_of(14);
  longer[13] = 77;
  longer.push_back(78);
  bench.add(2, longer, 10);
  const SequencePlan second = rows_of(bench.step(), 2);
  EXPECT_EQ(second.first_position, 12);
  EXPECT_EQ(second.num_committed_rows, 3);
  const auto& blocks = rows_of(first, 1).new_blocks;
  ASSERT_EQ(second.new_blocks.size(), 4u);
  EXPECT_TRUE(std::equal(blocks.begin(), blocks.begin() + 3, second.new_blocks.begin()));
  EXPECT_NE(second.new_blocks[3], blocks[3]);
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 16 - 5);
  EXPECT_EQ(bench.planner.counters().num_prefix_queries, 29u);
  EXPECT_EQ(bench.planner.counters().num_prefix_hits, 12u);
}

TEST(PlannerReuse, OnlyRequestsOfTheSameSaltShare) {
  Bench bench(config_of(32));
  const auto cached = [&](uint64_t id, const std::string& salt) {
    bench.add(id, text_of(14), 1, false, salt);
    return rows_of(bench.step(), id).first_position;
  };
  EXPECT_EQ(cached(1, ""), 0);
  EXPECT_EQ(cached(2, "a"), 0);
  EXPECT_EQ(cached(3, "b"), 0);
  EXPECT_EQ(cached(4, ""), 12);
  EXPECT_EQ(cached(5, "a"), 12);
  EXPECT_EQ(cached(6, "b"), 12);
}

TEST(PlannerReuse, TheLastRowIsAlwaysComputed) {
  Bench bench(config_of(16));
  bench.add(1, text_of(16), 1);
  bench.step();
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 16);
  const std::shared_ptr<ResultStream> stream = bench.add(2, text_of(16), 1);
  const SequencePlan rows = rows_of(bench.step(), 2);
  EXPECT_EQ(rows.first_position, 12);
  EXPECT_EQ(rows.num_committed_rows, 4);
  const auto event = stream->wait_next(std::chrono::milliseconds(0));
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->num_cached_tokens, 12);
}

TEST(PlannerReuse, AnswersAreReusedToo) {
  Bench bench(config_of(16));
  bench.add(1, text_of(5), 8);
  for (int round = 0; round < 8; ++round) bench.step();
  Tokens chat = text_of(5);
  for (int32_t position = 5; position < 13; ++position) chat.push_back(500 + position);
  chat.push_back(3);
  bench.add(2, chat, 1);
  // The answer's last token was never computed, but position 12 is in no full block anyway.
  EXPECT_EQ(rows_of(bench.step(), 2).first_position, 12);
}

TEST(PlannerReuse, AScoredPromptIsComputedWhole) {
  Bench bench(config_of(16));
  bench.add(1, text_of(12), 1);
  bench.step();
  bench.add(2, text_of(12), 1, /*prompt_logprobs=*/true);
  EXPECT_EQ(bench.planner.plan().sequences.at(0).num_committed_rows, 12);
  EXPECT_EQ(bench.planner.counters().num_prefix_queries, 12u) << "it did not ask";
}

TEST(PlannerReuse, OffMeansOff) {
  PlannerConfig config = config_of(16);
  config.enable_prefix_caching = false;
  Bench bench(config);
  for (uint64_t id = 1; id <= 2; ++id) {
    bench.add(id, text_of(12), 1);
    EXPECT_EQ(rows_of(bench.step(), id).num_committed_rows, 12);
  }
  EXPECT_EQ(bench.planner.counters().num_prefix_queries, 0u);
}

TEST(PlannerReuse, ChunksAreNotSharedBeforeTheirOwnerHasSampled) {
  Bench bench(config_of(16, /*max_rows=*/9));
  bench.add(1, text_of(16), 4);
  EXPECT_EQ(rows_of(bench.step(), 1).num_committed_rows, 9);
  bench.add(2, text_of(16), 4);
  const RoundPlan plan = bench.step();
  EXPECT_EQ(rows_of(plan, 1).num_committed_rows, 7);
  EXPECT_EQ(rows_of(plan, 2).first_position, 0);
  // Now it has; a third one profits. (The second holds blocks of its own until it samples.)
  bench.add(3, text_of(16), 4);
  const RoundPlan next = bench.step();
  EXPECT_EQ(rows_of(next, 2).first_position, 2);
  bench.step();
  EXPECT_EQ(bench.planner.counters().num_prefix_hits, 12u);
}

TEST(PlannerReuse, AFailedSequenceSharesNothingAndLeavesOthersAlone) {
  Bench bench(config_of(16));
  bench.add(1, text_of(12), 10);
  bench.step(/*failing=*/1);
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 16);
  bench.add(2, text_of(12), 10);
  EXPECT_EQ(rows_of(bench.step(), 2).first_position, 0);
  bench.add(3, text_of(12), 10);
  EXPECT_EQ(rows_of(bench.step(), 3).first_position, 8);
  // One of the two that share fails: the other goes on, but the blocks are found no more.
  const RoundPlan plan = bench.step(/*failing=*/3);
  EXPECT_EQ(plan.sequences.size(), 2u);
  bench.add(4, text_of(12), 10);
  const RoundPlan next = bench.step();
  EXPECT_EQ(rows_of(next, 4).first_position, 0);
  EXPECT_EQ(rows_of(next, 2).num_committed_rows, 1);
}

TEST(PlannerReuse, APreemptedSequenceFindsItsOwnBlocks) {
  Bench bench(config_of(7));
  bench.add(1, text_of(8), 12);
  Tokens other = text_of(12);
  other[0] = 99;
  bench.add(2, other, 8);
  uint64_t num_preempted = 0;
  bool found = false;
  for (int round = 0; round < 40 && !bench.planner.idle(); ++round) {
    const RoundPlan plan = bench.step();
    const uint64_t num_now = bench.planner.counters().num_preemptions;
    for (const SequencePlan& rows : plan.sequences) {
      if (num_now > 0 && num_now == num_preempted && rows.sequence_id == 2 && rows.replace_blocks) {
        found = rows.first_position > 0;
      }
    }
    num_preempted = num_now;
  }
  EXPECT_GT(num_preempted, 0u);
  EXPECT_TRUE(found);
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 7);
}

// What others hold costs nothing: the second fits only because it shares.
TEST(PlannerReuse, SharingLetsMoreIn) {
  for (const bool reuse : {false, true}) {
    PlannerConfig config = config_of(8);
    config.enable_prefix_caching = reuse;
    Bench bench(config);
    bench.add(1, text_of(20), 4);
    bench.step();
    bench.add(2, text_of(20), 4);
    EXPECT_EQ(bench.step().sequences.size(), reuse ? 2u : 1u);
  }
}

}  // namespace
}  // namespace outrider
