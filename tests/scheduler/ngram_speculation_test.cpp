// Drafts without a worker and lengths chosen by what they bring, in virtual time: the planner, what
// was learned, and a pseudo model whose texts repeat themselves or do not. And what the planner
// tells of the next round: the rows of prompts in it.
#include <gtest/gtest.h>

#include <functional>

#include "scheduler/pacing/speculation.h"
#include "tests/scheduler/fake_ranks.h"

namespace outrider {
namespace {

using testing::FakeModel;
using testing::FakeTarget;

PlannerConfig config_of(int32_t longest) {
  PlannerConfig config;
  config.num_blocks = 1000;
  config.max_model_len = 4096;
  config.vocab_size = 17;
  config.draft_method = longest > 0 ? DraftMethod::kNgram : DraftMethod::kNone;
  config.num_speculative_tokens = longest;
  return config;
}

Request request_of(uint64_t id, int32_t num_prompt, int32_t max_tokens) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < num_prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>((id * 7 + static_cast<uint64_t>(i) * 5) % 17));
  }
  request.params.max_tokens = max_tokens;
  request.stream = std::make_shared<ResultStream>();
  return request;
}

struct Figures {
  double tokens_per_s = 0;
  double per_round = 0;  // tokens of a sequence
  int64_t num_drafted = 0;
};

// As runtime/ranks/coordinator/draft_pacer.cpp does it, with rounds that take step(rows).
Figures run(bool repeating,
            int32_t longest,
            int32_t num_sequences,
            const std::function<double(int32_t)>& step) {
  const PlannerConfig config = config_of(longest);
  Planner planner(config);
  Speculation speculation({.longest_draft_len = std::max(1, longest)});
  FakeTarget target({.short_memory = repeating}, config);
  for (int32_t i = 0; i < num_sequences; ++i) {
    planner.add(request_of(static_cast<uint64_t>(i) + 1, 8 + i, 1500));
  }
  Figures figures;
  double seconds = 0;
  int64_t num_tokens = 0;
  int64_t num_sampled = 0;
  if (longest > 0) planner.set_draft_len(4);
  RoundChoice choice;
  while (!planner.idle()) {
    const RoundPlan plan = planner.plan();
    const RoundDecision decision = target.execute(plan);
    planner.apply(plan, decision);
    RoundRecord round = record_of(plan, decision);
    round.draft_worked = choice.draft_works;
    round.step_s = step(round.load.num_rows);
    round.total_s = round.step_s + 0.001;
    seconds += round.total_s;
    figures.num_drafted += round.num_drafted;
    num_tokens += round.num_tokens;
    num_sampled += round.num_sequences;
    const DraftNews news = planner.take_draft_news();
    for (const DraftResult& verdict : news.results) {
      if (verdict.num_drafted == 0) continue;
      speculation.record_result(verdict.sequence_id, verdict.num_drafted, verdict.num_accepted);
    }
    for (uint64_t id : news.ended) speculation.forget(id);
    speculation.record_round(round);
    if (longest == 0) continue;
    choice = speculation.choose(planner.draft_state());
    EXPECT_FALSE(choice.wait);  // for whom
    planner.set_draft_lens(choice.sequences);
  }
  EXPECT_TRUE(target.faults().empty());
  figures.tokens_per_s = static_cast<double>(num_tokens) / seconds;
  figures.per_round = static_cast<double>(num_tokens) / static_cast<double>(num_sampled);
  return figures;
}

double slow(int32_t rows) { return 1 + 0.005 * rows; }      // reading the weights is all
double by_rows(int32_t rows) { return 0.02 + 1.0 * rows; }  // each row costs a row

TEST(NgramSpeculation, TextsThatRepeatAreDraftedWhereRowsAreCheap) {
  for (int32_t num_sequences : {1, 6}) {
    const Figures plain = run(true, 0, num_sequences, slow);
    const Figures drafted = run(true, 16, num_sequences, slow);
    EXPECT_EQ(plain.per_round, 1) << num_sequences;
    EXPECT_GE(drafted.per_round, 8) << num_sequences;
    EXPECT_GE(drafted.tokens_per_s, 5 * plain.tokens_per_s) << num_sequences;
  }
}

TEST(NgramSpeculation, TextsThatDoNotRepeatCostNextToNothing) {
  for (int32_t num_sequences : {1, 6}) {
    const Figures plain = run(false, 0, num_sequences, by_rows);
    const Figures drafted = run(false, 16, num_sequences, by_rows);
    EXPECT_GT(drafted.num_drafted, 0) << num_sequences;  // it was tried
    EXPECT_GE(drafted.tokens_per_s, 0.97 * plain.tokens_per_s) << num_sequences;
    // Where rows are free, a draft that seldom stands still brings what it brings.
    EXPECT_GE(run(false, 16, num_sequences, slow).tokens_per_s,
              0.98 * run(false, 0, num_sequences, slow).tokens_per_s);
  }
}

TEST(DraftOutlook, PromptsCountWithTheRowsThatDraftsLeaveThem) {
  PlannerConfig config = config_of(4);
  config.max_num_batched_tokens = 32;
  Planner planner(config);
  FakeTarget target({}, config);
  const auto play = [&] {
    const RoundPlan plan = planner.plan();
    planner.apply(plan, target.execute(plan));
  };
  planner.add(request_of(1, 8, 100));
  play();
  RoundState state = planner.draft_state();
  ASSERT_EQ(state.sequences.size(), 1u);
  EXPECT_EQ(state.max_rows, 32);
  EXPECT_EQ(state.num_prompt_rows, 0);
  planner.set_draft_len(0);
  planner.add(request_of(2, 40, 10));
  play();  // 31 rows of the prompt
  state = planner.draft_state();
  ASSERT_EQ(state.sequences.size(), 1u);
  EXPECT_EQ(state.num_prompt_rows, 9);
  EXPECT_EQ(state.num_prompt_kv_positions, 40);
  EXPECT_EQ(state.num_prompt_positions, 9 * 31 + 45);
  planner.add(request_of(3, 200, 10));
  play();
  state = planner.draft_state();
  ASSERT_EQ(state.sequences.size(), 2u);
  EXPECT_EQ(state.num_prompt_rows, 15);  // half of 30
  EXPECT_TRUE(target.faults().empty());
}

}  // namespace
}  // namespace outrider
