// Rounds written out by hand; the random lives are in planner_random_test.cpp.
#include "scheduler/batching/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/base/error.h"
#include "tests/scheduler/packed.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

PlannerConfig small_config() {
  PlannerConfig config;
  config.block_size = 4;
  config.num_blocks = 64;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.max_model_len = 64;
  config.vocab_size = 1000;
  config.enable_prefix_caching = false;  // prompts here begin alike; see planner_reuse_test.cpp
  return config;
}

PlannerConfig draft_config() {
  PlannerConfig config = small_config();
  config.draft_method = DraftMethod::kDraftModel;
  config.num_speculative_tokens = 3;
  return config;
}

// A planner with its streams, and ranks that answer token 500 + position and accept what they are
// told to.
class Bench {
 public:
  explicit Bench(const PlannerConfig& config) : planner(config) {}

  std::shared_ptr<ResultStream> add(uint64_t id, int32_t num_prompt, int32_t max_tokens) {
    return add(request(id, num_prompt, max_tokens));
  }
  std::shared_ptr<ResultStream> add(Request request) {
    request.stream = std::make_shared<ResultStream>();
    std::shared_ptr<ResultStream> stream = request.stream;
    planner.add(std::move(request));
    return stream;
  }
  static Request request(uint64_t id, int32_t num_prompt, int32_t max_tokens) {
    Request request;
    request.id = id;
    request.prompt.resize(static_cast<size_t>(num_prompt));
    std::iota(request.prompt.begin(), request.prompt.end(), 1);
    request.params.max_tokens = max_tokens;
    return request;
  }

  RoundPlan step(int32_t num_accepted = 0) {
    RoundPlan plan = planner.plan();
    planner.apply(plan, decide(plan, num_accepted));
    EXPECT_EQ(planner.fault(), "");
    return plan;
  }
  // A token for every sequence; the planner ignores those of chunks that do not reach the end.
  static RoundDecision decide(const RoundPlan& plan, int32_t num_accepted) {
    RoundDecision decision;
    for (const SequencePlan& rows : plan.sequences) {
      SequenceDecision made;
      made.sequence_id = rows.sequence_id;
      made.num_accepted = std::min(num_accepted, static_cast<int32_t>(rows.draft.size()));
      made.next_token = 500 + rows.first_position + rows.num_committed_rows + made.num_accepted;
      decision.sequences.push_back(made);
    }
    return decision;
  }

  Planner planner;
};

bool has_rows(const RoundPlan& plan, uint64_t id) {
  return std::ranges::count(plan.sequences, id, &SequencePlan::sequence_id) > 0;
}

// Fails the test and returns empty rows when the sequence is not in the plan.
SequencePlan rows_of(const RoundPlan& plan, uint64_t id) {
  for (const SequencePlan& rows : plan.sequences) {
    if (rows.sequence_id == id) return rows;
  }
  ADD_FAILURE() << "sequence " << id << " is not in the plan";
  return {};
}

std::vector<ResultEvent> events_of(ResultStream& stream) {
  std::vector<ResultEvent> events;
  while (auto event = stream.wait_next(std::chrono::milliseconds(0))) {
    events.push_back(std::move(*event));
  }
  return events;
}

FinishReason reason_of(ResultStream& stream) {
  const std::vector<ResultEvent> events = events_of(stream);
  return events.empty() ? FinishReason::kNone : events.back().finish_reason;
}

DraftBlock block_for(uint64_t id, uint32_t round, int32_t base_len, const Tokens& tokens) {
  DraftBlock block{id, round, base_len, {}};
  for (int32_t token : tokens) block.tokens.push_back({token, {}});
  return block;
}

TEST(Planner, EventsSayWhenTheRequestWasScheduledAndWhenTheirRoundWasDecided) {
  PlannerConfig config = small_config();
  config.max_num_batched_tokens = 6;
  Bench bench(config);
  const auto stream = bench.add(1, 10, 2);
  const auto before = JobClock::now();
  bench.step();
  const auto between = JobClock::now();
  bench.step();
  bench.step();
  const std::vector<ResultEvent> events = events_of(*stream);
  ASSERT_EQ(events.size(), 2u);
  for (const ResultEvent& event : events) {
    ASSERT_TRUE(event.scheduled_at);
    EXPECT_GE(*event.scheduled_at, before);
    EXPECT_LE(*event.scheduled_at, between);  // its first chunk's round
    EXPECT_GE(event.decided_at, between);
  }
  EXPECT_LT(events[0].decided_at, events[1].decided_at);
  const auto never_ran = bench.add(2, 4, 1);
  bench.planner.cancel(2);
  EXPECT_FALSE(events_of(*never_ran).at(0).scheduled_at);
}

TEST(Planner, PromptInChunksThenOneRowPerRound) {
  PlannerConfig config = small_config();
  config.max_num_batched_tokens = 6;
  Bench bench(config);
  const auto stream = bench.add(1, 14, 3);
  RoundPlan plan = bench.step();
  ASSERT_EQ(plan.starts.size(), 1u);
  EXPECT_EQ(plan.starts[0].tokens.size(), 14u);
  EXPECT_EQ(plan.sequences[0].num_committed_rows, 6);
  EXPECT_EQ(plan.sequences[0].new_blocks.size(), 4u);
  EXPECT_EQ(bench.step().sequences[0].first_position, 6);
  plan = bench.step();
  EXPECT_TRUE(plan.starts.empty());
  EXPECT_EQ(plan.sequences[0].num_committed_rows, 2);
  EXPECT_TRUE(plan.sequences[0].new_blocks.empty());
  plan = bench.step();
  EXPECT_EQ(plan.sequences[0].first_position, 14);
  EXPECT_EQ(plan.sequences[0].num_committed_rows, 1);
  EXPECT_EQ(plan.sequences[0].round, 1u);
  bench.step();
  const std::vector<ResultEvent> events = events_of(*stream);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].tokens, (Tokens{514}));
  EXPECT_EQ(events[2].finish_reason, FinishReason::kLength);
  EXPECT_TRUE(bench.planner.idle());
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 64);
}

TEST(Planner, DecodesComeBeforePromptsInOneRound) {
  PlannerConfig config = small_config();
  config.max_num_batched_tokens = 8;
  Bench bench(config);
  bench.add(1, 2, 10);
  bench.step();
  bench.add(2, 20, 10);
  const RoundPlan plan = bench.step();
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].sequence_id, 1u);
  EXPECT_EQ(plan.sequences[1].num_committed_rows, 7);
}

TEST(Planner, AShortBudgetShortensAllDraftsAlikeAndKeepsHalfForPrompts) {
  PlannerConfig config = draft_config();
  config.max_num_batched_tokens = 10;
  Bench bench(config);
  for (uint64_t id = 1; id <= 3; ++id) bench.add(id, 3, 20);
  bench.step();
  const auto offer_all = [&] {
    for (uint64_t id = 1; id <= 3; ++id) {
      EXPECT_TRUE(testing::offer(bench.planner, block_for(id, 1, 4, {1, 2, 3})));
    }
  };
  offer_all();
  const RoundPlan plan = bench.planner.plan();
  // 3 rows for the last tokens, 7 left for 9 draft tokens.
  EXPECT_EQ(rows_of(plan, 1).draft.size(), 3u);
  EXPECT_EQ(rows_of(plan, 2).draft.size(), 2u);
  EXPECT_EQ(rows_of(plan, 3).draft.size(), 2u);
  EXPECT_EQ(num_rows_of(rows_of(plan, 1)), 4);
  EXPECT_EQ(num_rows_of(plan.sequences), 10);

  Bench other(config);
  for (uint64_t id = 1; id <= 3; ++id) other.add(id, 3, 20);
  other.step();
  for (uint64_t id = 1; id <= 3; ++id)
    testing::offer(other.planner, block_for(id, 1, 4, {1, 2, 3}));
  other.add(4, 30, 1);
  const RoundPlan mixed = other.planner.plan();
  EXPECT_EQ(rows_of(mixed, 1).draft.size(), 1u);
  EXPECT_EQ(rows_of(mixed, 3).draft.size(), 1u);
  EXPECT_EQ(rows_of(mixed, 4).num_committed_rows, 4);
  EXPECT_EQ(num_rows_of(mixed.sequences), 10);
}

TEST(Planner, NoMoreSequencesRunThanTheBudgetHasRows) {
  PlannerConfig config = small_config();
  config.max_num_batched_tokens = 2;
  Bench bench(config);
  for (uint64_t id = 1; id <= 4; ++id) bench.add(id, 1, 5);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(bench.step().sequences.size(), 2u);
}

TEST(Planner, LowerPriorityFirstThenArrival) {
  PlannerConfig config = small_config();
  config.max_num_seqs = 1;
  Bench bench(config);
  const int32_t priorities[] = {1, 0, 1, -1};
  for (uint64_t id = 1; id <= 4; ++id) {
    Request request = Bench::request(id, 2, 1);
    request.priority = priorities[id - 1];
    bench.add(std::move(request));
  }
  std::vector<uint64_t> order;
  while (!bench.planner.idle()) order.push_back(bench.step().sequences[0].sequence_id);
  EXPECT_EQ(order, (std::vector<uint64_t>{4, 2, 1, 3}));
}

TEST(Planner, TheYoungestGivesItsBlocksAndComesBackWithNewOnes) {
  PlannerConfig config = small_config();
  config.num_blocks = 4;
  config.max_model_len = 16;
  Bench bench(config);
  bench.add(1, 7, 6);
  bench.add(2, 7, 6);
  bench.step();  // both prompts: 2 blocks each
  bench.step();
  bench.step();  // position 8 of both: no block is free
  EXPECT_EQ(bench.planner.counters().num_preemptions, 1u);
  EXPECT_EQ(bench.planner.counters().num_running, 1);
  RoundPlan plan;
  while (!has_rows(plan, 2)) plan = bench.step();
  const SequencePlan rows = rows_of(plan, 2);
  EXPECT_TRUE(rows.replace_blocks);
  EXPECT_EQ(rows.first_position, 0);
  EXPECT_EQ(rows.num_committed_rows, 9);
  EXPECT_EQ(rows.round, 2u);
  EXPECT_TRUE(plan.starts.empty());
}

TEST(Planner, DraftsNeverPreempt) {
  PlannerConfig config = draft_config();
  config.num_blocks = 4;
  config.max_model_len = 16;
  Bench bench(config);
  bench.add(1, 6, 6);
  bench.add(2, 6, 2);
  bench.step();
  ASSERT_TRUE(testing::offer(bench.planner, block_for(1, 1, 7, {1, 2, 3})));
  const RoundPlan plan = bench.step();
  EXPECT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(rows_of(plan, 1).draft.size(), 1u);  // position 7 is in its block, 8 is not
  EXPECT_EQ(bench.planner.counters().num_preemptions, 0u);
}

TEST(Planner, BlocksOfRejectedDraftsAreTakenBackBeforeAnyoneIsPreempted) {
  PlannerConfig config = draft_config();
  config.num_blocks = 5;
  config.max_model_len = 16;
  Bench bench(config);
  bench.add(1, 7, 8);
  bench.add(2, 5, 8);
  bench.step();
  ASSERT_TRUE(testing::offer(bench.planner, block_for(2, 1, 6, {1, 2, 3})));
  EXPECT_EQ(rows_of(bench.step(0), 2).draft.size(),
            3u);  // position 8: the fifth block, for nothing
  const RoundPlan plan = bench.step();
  EXPECT_EQ(bench.planner.counters().num_preemptions, 0u);
  EXPECT_EQ(rows_of(plan, 1).new_blocks.size(), 1u);
  EXPECT_TRUE(rows_of(plan, 2).replace_blocks);
  EXPECT_EQ(rows_of(plan, 2).new_blocks.size(), 2u);
  EXPECT_EQ(rows_of(plan, 2).first_position, 6);  // its KV stays
}

TEST(Planner, WhoWasPreemptedComesBackOnlyWithABlockToSpareForEachOther) {
  PlannerConfig config = small_config();
  config.block_size = 1;
  config.num_blocks = 12;
  config.max_model_len = 12;
  Bench bench(config);
  for (uint64_t id = 1; id <= 3; ++id) bench.add(id, 3, 9);
  for (int i = 0; i < 4; ++i) bench.step();
  EXPECT_EQ(bench.planner.counters().num_preemptions, 1u);
  bench.planner.cancel(1);
  // 2 takes its seventh block and leaves five: just enough for 3, which would be thrown out at
  // once.
  EXPECT_EQ(bench.step().sequences.size(), 1u);
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 5);
}

TEST(Planner, DraftHearsOfEverySequenceOnce) {
  Bench bench(draft_config());
  EXPECT_TRUE(bench.planner.take_draft_request().is_empty());
  bench.add(1, 4, 20);
  EXPECT_TRUE(bench.planner.take_draft_request().opens.empty());  // not running yet
  RoundPlan plan = bench.planner.plan();
  DraftRequest request = bench.planner.take_draft_request();
  ASSERT_EQ(request.opens.size(), 1u);
  EXPECT_EQ(request.opens[0].tokens, (Tokens{1, 2, 3, 4}));
  EXPECT_TRUE(request.commits.empty());
  bench.planner.apply(plan, Bench::decide(plan, 0));
  EXPECT_TRUE(bench.planner.wants_draft());
  request = bench.planner.take_draft_request();
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].round, 1u);
  EXPECT_EQ(request.commits[0].num_tokens_before, 4);
  EXPECT_EQ(request.commits[0].tokens, (Tokens{504}));
  EXPECT_EQ(request.commits[0].draft_len, 3);
  EXPECT_TRUE(bench.planner.take_draft_request().commits.empty());
  ASSERT_TRUE(testing::offer(bench.planner, block_for(1, 1, 5, {7, 8, 9})));
  EXPECT_FALSE(bench.planner.wants_draft());
  EXPECT_EQ(bench.step(1).sequences[0].draft.size(), 3u);
  request = bench.planner.take_draft_request();
  EXPECT_EQ(request.commits.at(0).tokens, (Tokens{7, 506}));
  EXPECT_EQ(request.commits.at(0).round, 2u);
  bench.planner.cancel(1);
  request = bench.planner.take_draft_request();
  EXPECT_EQ(request.closes, (std::vector<uint64_t>{1}));
  EXPECT_TRUE(request.opens.empty() && request.commits.empty());
}

TEST(Planner, TheDraftIsNotBotheredForNothing) {
  Bench bench(draft_config());
  Request request = Bench::request(1, 4, 20);
  request.params.max_draft_len = 0;
  bench.add(std::move(request));
  bench.add(2, 4, 2);  // its second token is its last: nothing to propose
  bench.step();
  EXPECT_TRUE(bench.planner.take_draft_request().is_empty());
  EXPECT_FALSE(bench.planner.wants_draft());
  bench.add(3, 4, 4);
  bench.step();
  EXPECT_EQ(bench.planner.take_draft_request().commits.at(0).draft_len, 2);
  bench.step();
  EXPECT_EQ(bench.planner.take_draft_request().commits.at(0).draft_len, 1);
  bench.step();  // one token is left: the draft only keeps up
  EXPECT_EQ(bench.planner.take_draft_request().commits.at(0).draft_len, 0);
  EXPECT_FALSE(bench.planner.wants_draft());
}

TEST(Planner, BadBlocksAreDropped) {
  Bench bench(draft_config());
  bench.add(1, 4, 20);
  bench.step();
  Planner& planner = bench.planner;
  EXPECT_FALSE(testing::offer(planner, block_for(2, 1, 5, {7})));           // nobody
  EXPECT_FALSE(testing::offer(planner, block_for(1, 0, 5, {7})));           // of the round before
  EXPECT_FALSE(testing::offer(planner, block_for(1, 2, 5, {7})));           // of a round to come
  EXPECT_FALSE(testing::offer(planner, block_for(1, 1, 4, {7})));           // other text
  EXPECT_FALSE(testing::offer(planner, block_for(1, 1, 5, {7, 7, 7, 7})));  // too long
  EXPECT_FALSE(testing::offer(planner, block_for(1, 1, 5, {-1})));
  EXPECT_FALSE(testing::offer(planner, block_for(1, 1, 5, {7, 1000})));  // not in the vocabulary
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<DraftCandidate>> bad_candidates = {
      {{8, 1.0f}},  // does not hold the token
      {{7, 0.5f}},  // does not sum to 1
      {{7, nan}},
      {{7, 0.5f}, {8, nan}},
      {{7, 0.5f}, {7, 0.5f}},  // twice the same
      {{7, 1.5f}, {8, -0.5f}},
      {{7, 0.0f}, {8, 1.0f}},
      {{7, 0.5f}, {1000, 0.5f}},
      {{7, 0.5f}, {-1, 0.5f}},
  };
  for (const auto& candidates : bad_candidates) {
    DraftBlock block = block_for(1, 1, 5, {7});
    block.tokens[0].candidates = candidates;
    EXPECT_FALSE(testing::offer(planner, block));
  }
  EXPECT_TRUE(planner.wants_draft());
  DraftBlock good = block_for(1, 1, 5, {7});
  good.tokens[0].candidates = {{7, 0.75f}, {8, 0.25f}};
  EXPECT_TRUE(testing::offer(planner, good));
  EXPECT_FALSE(testing::offer(planner, good));  // already here
  EXPECT_EQ(planner.plan().sequences[0].draft, good.tokens);
}

TEST(Planner, AnEmptyBlockEndsTheWaiting) {
  Bench bench(draft_config());
  bench.add(1, 4, 20);
  bench.step();
  ASSERT_TRUE(bench.planner.wants_draft());
  EXPECT_TRUE(testing::offer(bench.planner, block_for(1, 1, 5, {})));
  EXPECT_FALSE(bench.planner.wants_draft());
  EXPECT_TRUE(bench.step().sequences[0].draft.empty());
  EXPECT_TRUE(bench.planner.wants_draft());
}

TEST(Planner, WithoutTheDraftWorkerTheTextGoesOn) {
  Bench bench(draft_config());
  bench.add(1, 4, 20);
  bench.add(2, 4, 20);
  bench.step();
  bench.planner.take_draft_request();
  ASSERT_TRUE(testing::offer(bench.planner, block_for(1, 1, 5, {7})));
  bench.planner.set_draft_available(false);
  EXPECT_FALSE(bench.planner.wants_draft());
  EXPECT_FALSE(testing::offer(bench.planner, block_for(2, 1, 5, {7})));
  const RoundPlan plan = bench.step();
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_TRUE(plan.sequences[0].draft.empty());
  bench.planner.cancel(2);
  EXPECT_TRUE(bench.planner.take_draft_request().is_empty());
  bench.planner.set_draft_available(true);
  DraftRequest request = bench.planner.take_draft_request();
  EXPECT_TRUE(request.closes.empty());  // the new one never knew sequence 2
  ASSERT_EQ(request.opens.size(), 1u);
  EXPECT_EQ(request.opens[0].tokens.size(), 6u);
  EXPECT_EQ(request.opens[0].num_output_tokens, 2);  // penalties and grammars go by the output
  ASSERT_EQ(request.commits.size(), 1u);
  EXPECT_EQ(request.commits[0].num_tokens_before, 6);
  EXPECT_TRUE(request.commits[0].tokens.empty());
  EXPECT_EQ(request.commits[0].round, 2u);
  bench.planner.set_draft_available(true);  // no news
  EXPECT_TRUE(bench.planner.take_draft_request().is_empty());
}

TEST(Planner, NgramDraftsComeFromTheTextItself) {
  PlannerConfig config = small_config();
  config.draft_method = DraftMethod::kNgram;
  Bench bench(config);
  Request request = Bench::request(1, 0, 20);
  request.prompt = {5, 6, 7, 8, 5, 6};
  bench.add(std::move(request));
  const RoundPlan plan = bench.planner.plan();
  ASSERT_EQ(plan.sequences[0].draft.size(), 4u);
  EXPECT_EQ(plan.sequences[0].draft[0], (DraftToken{7, {}}));
  EXPECT_EQ(plan.sequences[0].draft[3], (DraftToken{6, {}}));
  EXPECT_FALSE(bench.planner.wants_draft());
  EXPECT_TRUE(bench.planner.take_draft_request().is_empty());
}

TEST(Planner, RefusalsSayWhy) {
  PlannerConfig config = small_config();
  config.num_blocks = 8;
  Planner planner(config);
  EXPECT_EQ(planner.refusal(Bench::request(1, 20, 13)),
            "");  // 32 positions, the last is never computed
  EXPECT_NE(planner.refusal(Bench::request(1, 20, 14)).find("9 KV blocks"), std::string::npos);
  EXPECT_NE(planner.refusal(Bench::request(1, 60, 5)).find("64 tokens"), std::string::npos);
  EXPECT_NE(planner.refusal(Bench::request(1, 2, 2147483647)), "");
  EXPECT_NE(planner.refusal(Bench::request(1, 0, 5)), "");
  EXPECT_NE(planner.refusal(Bench::request(1, 5, -1)), "");
  EXPECT_EQ(planner.refusal(Bench::request(1, 32, 0)), "");
  Bench bench(config);
  const auto stream = bench.add(1, 60, 5);  // added all the same
  EXPECT_EQ(reason_of(*stream), FinishReason::kError);
  EXPECT_TRUE(bench.planner.idle());
}

TEST(Planner, ARequestThatJustFitsRunsToItsEnd) {
  PlannerConfig config = small_config();
  config.num_blocks = 8;
  Bench bench(config);
  const auto stream = bench.add(1, 20, 13);
  while (!bench.planner.idle()) bench.step();
  EXPECT_EQ(reason_of(*stream), FinishReason::kLength);
}

TEST(Planner, BadConfigurationsAreRefused) {
  const auto refused = [](auto change) {
    PlannerConfig config = small_config();
    change(config);
    EXPECT_THROW(Planner{config}, Error);
  };
  refused([](PlannerConfig& config) { config.block_size = 0; });
  refused([](PlannerConfig& config) { config.num_blocks = 0; });
  refused([](PlannerConfig& config) { config.max_num_seqs = 0; });
  refused([](PlannerConfig& config) { config.max_num_batched_tokens = 0; });
  refused([](PlannerConfig& config) { config.max_model_len = 0; });
  refused([](PlannerConfig& config) { config.num_speculative_tokens = -1; });
  refused([](PlannerConfig& config) { config.prompt_lookup_min = 0; });
  refused([](PlannerConfig& config) { config.prompt_lookup_max = 1; });
}

TEST(Planner, CancelAtAnyTime) {
  PlannerConfig config = small_config();
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 6;
  Bench bench(config);
  const auto running = bench.add(1, 4, 9);
  const auto in_prefill = bench.add(2, 9, 9);
  const auto waiting = bench.add(3, 4, 9);
  bench.step();
  for (uint64_t id = 1; id <= 3; ++id) bench.planner.cancel(id);
  bench.planner.cancel(77);
  EXPECT_EQ(reason_of(*running), FinishReason::kAborted);
  EXPECT_EQ(reason_of(*in_prefill), FinishReason::kAborted);
  EXPECT_EQ(reason_of(*waiting), FinishReason::kAborted);
  EXPECT_TRUE(bench.planner.idle());
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 64);
  EXPECT_TRUE(bench.planner.plan().ends.empty());  // an empty plan is not executed
  bench.add(4, 1, 1);
  EXPECT_EQ(bench.planner.plan().ends, (std::vector<uint64_t>{1, 2}));
}

TEST(Planner, CancelWhileTheRanksCompute) {
  Bench bench(small_config());
  const auto stream = bench.add(1, 4, 9);
  const auto other = bench.add(2, 4, 1);
  const RoundPlan plan = bench.planner.plan();
  bench.planner.cancel(1);
  bench.planner.apply(plan, Bench::decide(plan, 0));
  const std::vector<ResultEvent> events = events_of(*stream);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish_reason, FinishReason::kAborted);
  EXPECT_EQ(reason_of(*other), FinishReason::kLength);
}

TEST(Planner, FailAllEndsEverything) {
  PlannerConfig config = small_config();
  config.max_num_seqs = 1;
  Bench bench(config);
  const auto running = bench.add(1, 4, 9);
  const auto waiting = bench.add(2, 4, 9);
  bench.step();
  bench.planner.fail_all("the target is gone");
  EXPECT_TRUE(bench.planner.idle());
  EXPECT_EQ(bench.planner.fault(), "");
  for (ResultStream* stream : {running.get(), waiting.get()}) {
    const ResultEvent last = events_of(*stream).back();
    EXPECT_EQ(last.finish_reason, FinishReason::kAborted);
    EXPECT_EQ(last.error, "the target is gone");
  }
}

TEST(Planner, NaNEndsOneSequenceAndLeavesTheOthers) {
  Bench bench(small_config());
  const auto bad = bench.add(1, 4, 9);
  const auto good = bench.add(2, 4, 1);
  const RoundPlan plan = bench.planner.plan();
  RoundDecision decision = Bench::decide(plan, 0);
  decision.sequences[0] = {1, 0, -1, true, {}, {}};
  bench.planner.apply(plan, decision);
  const ResultEvent last = events_of(*bad).back();
  EXPECT_EQ(last.finish_reason, FinishReason::kError);
  EXPECT_EQ(last.error, "the model produced NaN or infinite logits");
  EXPECT_EQ(reason_of(*good), FinishReason::kLength);
  EXPECT_EQ(bench.planner.counters().num_free_blocks, 64);
}

TEST(Planner, NothingToWriteNeedsNoRound) {
  Bench bench(small_config());
  const auto stream = bench.add(1, 4, 0);
  EXPECT_EQ(reason_of(*stream), FinishReason::kLength);
  EXPECT_TRUE(bench.planner.idle());
}

}  // namespace
}  // namespace outrider
