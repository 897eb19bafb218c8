// Whether a draft that works in turns with the target begins with a batch of a size that was never
// measured: by the steps that were probed and what is known of the draft.
#include <gtest/gtest.h>

#include <map>

#include "scheduler/pacing/speculation.h"

namespace outrider {
namespace {

// Which knows steps by rows from a probe.
Speculation in_turns(const std::map<int32_t, double>& steps) {
  Speculation planner({.has_worker = true});
  for (const auto& [rows, seconds] : steps) planner.record_probe({.num_rows = rows}, seconds);
  return planner;
}

// Whether the draft begins with a batch of that size.
bool begins_with(int32_t num_sequences, const Speculation& planner) {
  RoundState state;
  state.max_rows = 512;
  for (int32_t i = 1; i <= num_sequences; ++i) {
    state.sequences.push_back(
        {.sequence_id = static_cast<uint64_t>(i), .num_context = 1, .limit = 8});
  }
  return planner.choose(state).draft_works;
}

TEST(DraftBegins, ManySequencesBeginWithoutADraftWhoseRowsCostTooMuch) {
  // ms of TinyLlama in Q4_0 on two cores (bound by its multipliers), and of an 8B on an H200.
  const Speculation cpu = in_turns({{1, 19.6}, {5, 23.1}, {17, 60.7}, {64, 220}});
  const std::map<int32_t, double> gpu_steps = {
      {1, 4.2}, {5, 4.4}, {17, 4.8}, {32, 5.6}, {64, 6.9}, {128, 11.2}, {256, 17}, {512, 28}};
  const Speculation gpu = in_turns(gpu_steps);
  for (const int32_t few : {1, 4, 5}) EXPECT_TRUE(begins_with(few, cpu)) << few << ", to learn";
  for (const int32_t many : {6, 8, 16, 64}) EXPECT_FALSE(begins_with(many, cpu)) << many;
  for (const int32_t many : {6, 8, 16, 32}) EXPECT_TRUE(begins_with(many, gpu)) << many;
  for (const int32_t many : {46, 64, 90}) EXPECT_FALSE(begins_with(many, gpu)) << many;
  // What was learned meanwhile counts.
  Speculation bad_draft = in_turns(gpu_steps);
  for (int i = 0; i < 40; ++i) bad_draft.record_result(1, 4, 0);
  EXPECT_FALSE(begins_with(16, bad_draft));
  Speculation slow_draft = in_turns(gpu_steps);
  slow_draft.record_draft_work(1, 16, 3, true);
  EXPECT_FALSE(begins_with(16, slow_draft));
  Speculation far_draft = in_turns(gpu_steps);
  far_draft.record_draft_work(1, 16, 0.1, true);
  EXPECT_TRUE(begins_with(16, far_draft));
  for (int i = 0; i < 200; ++i) far_draft.record_first_tokens(5, 16, 1);
  EXPECT_FALSE(begins_with(16, far_draft));
  // Three tokens pay where one and two do not.
  EXPECT_TRUE(begins_with(8, in_turns({{8, 1}, {16, 2}, {24, 2}, {32, 2}, {64, 4}})));
  EXPECT_FALSE(begins_with(8, in_turns({{8, 1}, {16, 2}, {24, 3}, {32, 4}, {64, 8}})));
}

TEST(DraftBegins, WhereStepsOfSoManyRowsAreNotKnownOnlyACrowdBeginsWithoutADraft) {
  const Speculation large_model = in_turns({{1, 0.5}, {5, 0.5}});
  EXPECT_TRUE(begins_with(8, large_model));
  EXPECT_FALSE(begins_with(16, large_model));
  EXPECT_TRUE(begins_with(64, in_turns({}))) << "nothing is known";
}

}  // namespace
}  // namespace outrider
