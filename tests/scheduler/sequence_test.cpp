// What a sequence does with decided tokens: origins, stops, length limits, NaN, scores of its
// prompt.
#include "scheduler/batching/sequence.h"

#include <gtest/gtest.h>

#include <memory>

namespace outrider {
namespace {

constexpr int32_t kMaxModelLen = 100;

Request request_of(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.id = 1;
  request.prompt = std::move(prompt);
  request.params.max_tokens = max_tokens;
  return request;
}

SequencePlan plan_of(const Sequence& sequence, std::vector<int32_t> draft) {
  SequencePlan plan;
  plan.sequence_id = sequence.id();
  plan.round = sequence.round();
  plan.first_position = sequence.num_computed();
  plan.num_committed_rows = sequence.num_uncomputed();
  for (int32_t token : draft) plan.draft.push_back({token, {}});
  return plan;
}

SequenceDecision decision_of(int32_t num_accepted, int32_t next_token) {
  SequenceDecision decision;
  decision.sequence_id = 1;
  decision.num_accepted = num_accepted;
  decision.next_token = next_token;
  return decision;
}

ResultEvent commit(Sequence& sequence,
                   std::vector<int32_t> draft,
                   int32_t num_accepted,
                   int32_t next) {
  ResultEvent event;
  EXPECT_TRUE(sequence.commit(
      plan_of(sequence, std::move(draft)), decision_of(num_accepted, next), kMaxModelLen, event));
  return event;
}

using Origins = std::vector<TokenOrigin>;
using Tokens = std::vector<int32_t>;

TEST(Sequence, OriginsAndStatistics) {
  Sequence sequence(request_of({1, 2}, 50), 0);
  ResultEvent event = commit(sequence, {}, 0, 3);
  EXPECT_EQ(event.tokens, (Tokens{3}));
  EXPECT_EQ(event.origins, (Origins{TokenOrigin::kPlain}));
  EXPECT_EQ(sequence.num_computed(), 2);
  event = commit(sequence, {4, 5, 6}, 1, 7);
  EXPECT_EQ(event.tokens, (Tokens{4, 7}));
  EXPECT_EQ(event.origins, (Origins{TokenOrigin::kAccepted, TokenOrigin::kCorrected}));
  EXPECT_EQ(sequence.num_tokens(), 5);
  EXPECT_EQ(sequence.num_computed(), 4);  // 1 2 3 and the accepted 4; not the correction
  event = commit(sequence, {8, 9}, 2, 10);
  EXPECT_EQ(event.origins,
            (Origins{TokenOrigin::kAccepted, TokenOrigin::kAccepted, TokenOrigin::kBonus}));
  EXPECT_EQ(sequence.round(), 3u);
  EXPECT_EQ(event.stats.num_rounds, 3);
  EXPECT_EQ(event.stats.num_spec_rounds, 2);
  EXPECT_EQ(event.stats.num_draft_tokens, 5);
  EXPECT_EQ(event.stats.num_accepted_tokens, 3);
  EXPECT_EQ(event.stats.drafted_per_position, (Tokens{2, 2, 1}));
  EXPECT_EQ(event.stats.accepted_per_position, (Tokens{2, 1, 0}));
}

// A bonus draft token is counted apart from the draft tokens, and only where it was its turn.
TEST(Sequence, OriginsAndStatisticsOfProposals) {
  Sequence sequence(request_of({1, 2}, 50), 0);
  const auto commit_proposed = [&](std::vector<int32_t> draft, int32_t num_accepted, int32_t next) {
    SequencePlan plan = plan_of(sequence, std::move(draft));
    plan.bonus_draft = DraftToken{30, {}};
    ResultEvent event;
    EXPECT_TRUE(sequence.commit(plan, decision_of(num_accepted, next), kMaxModelLen, event));
    return event;
  };
  EXPECT_EQ(commit_proposed({}, 0, 30).origins, (Origins{TokenOrigin::kAccepted}));
  EXPECT_EQ(commit_proposed({}, 0, 31).origins, (Origins{TokenOrigin::kCorrected}));
  EXPECT_EQ(commit_proposed({4, 5}, 2, 30).origins, Origins(3, TokenOrigin::kAccepted));
  EXPECT_EQ(sequence.num_computed(), 6);  // 1 2, two tokens without a draft, 4 5; no row for 30
  EXPECT_EQ(commit_proposed({4}, 1, 31).origins,
            (Origins{TokenOrigin::kAccepted, TokenOrigin::kCorrected}));
  const ResultEvent event = commit_proposed({4, 5}, 1, 30);  // what was drawn only looks like it
  EXPECT_EQ(event.origins, (Origins{TokenOrigin::kAccepted, TokenOrigin::kCorrected}));
  EXPECT_EQ(event.stats.num_rounds, 5);
  EXPECT_EQ(event.stats.num_spec_rounds, 3);
  EXPECT_EQ(event.stats.num_draft_tokens, 5);
  EXPECT_EQ(event.stats.num_accepted_tokens, 4);
  EXPECT_EQ(event.stats.num_bonus_drafts, 4);
  EXPECT_EQ(event.stats.num_accepted_bonus_drafts, 2);
}

TEST(Sequence, StopTokenInsideABlockDropsTheRest) {
  Request request = request_of({1}, 50);
  request.params.stop_token_ids = {9};
  Sequence sequence(std::move(request), 0);
  const ResultEvent event = commit(sequence, {4, 9, 5}, 3, 6);
  EXPECT_EQ(event.tokens, (Tokens{4}));
  EXPECT_EQ(event.origins.size(), 1u);
  EXPECT_EQ(event.finish_reason, FinishReason::kStop);
  EXPECT_EQ(event.stop_token, 9);
  EXPECT_EQ(event.stop_token_origin, TokenOrigin::kAccepted);
}

TEST(Sequence, TheStopTokenHasItsLogprobs) {
  Request request = request_of({1}, 50);
  request.params.stop_token_ids = {9};
  request.params.num_logprobs = 0;
  Sequence sequence(std::move(request), 0);
  SequenceDecision decision = decision_of(3, 6);
  for (int i = 0; i < 4; ++i)
    decision.logprobs.push_back({.logprob = -1.0f - i, .rank = 1, .top = {}});
  ResultEvent event;
  EXPECT_TRUE(sequence.commit(plan_of(sequence, {4, 9, 5}), decision, kMaxModelLen, event));
  EXPECT_EQ(event.logprobs.size(), 1u);
  ASSERT_TRUE(event.stop_token_logprobs);
  EXPECT_EQ(event.stop_token_logprobs->logprob, -2.0f);
}

TEST(Sequence, StopTokenCountsOnlyAfterMinTokens) {
  Request request = request_of({1}, 50);
  request.params.stop_token_ids = {9};
  request.params.min_tokens = 2;
  Sequence sequence(std::move(request), 0);
  ResultEvent event = commit(sequence, {9}, 1, 9);
  EXPECT_EQ(event.tokens, (Tokens{9, 9}));
  EXPECT_EQ(event.finish_reason, FinishReason::kNone);
  event = commit(sequence, {}, 0, 9);
  EXPECT_TRUE(event.tokens.empty());
  EXPECT_EQ(event.finish_reason, FinishReason::kStop);
}

TEST(Sequence, NeverMoreThanMaxTokensOrTheModelsLength) {
  Sequence sequence(request_of({1}, 2), 0);
  ResultEvent event = commit(sequence, {4, 5, 6}, 3, 7);
  EXPECT_EQ(event.tokens, (Tokens{4, 5}));
  EXPECT_EQ(event.finish_reason, FinishReason::kLength);
  Sequence other(request_of({1}, 50), 0);
  event = {};
  ASSERT_TRUE(other.commit(plan_of(other, {4, 5, 6}), decision_of(3, 7), 3, event));
  EXPECT_EQ(event.tokens, (Tokens{4, 5}));
  EXPECT_EQ(event.finish_reason, FinishReason::kLength);
}

TEST(Sequence, DraftLenLimit) {
  Request request = request_of({1, 2, 3}, 10);
  Sequence sequence(request, 0);
  EXPECT_EQ(sequence.draft_len_limit(4, 5, 100), 5);
  EXPECT_EQ(sequence.draft_len_limit(10, 5, 100), 2);  // 3 may still come, one is the target's own
  EXPECT_EQ(sequence.draft_len_limit(12, 5, 100), 0);
  EXPECT_EQ(sequence.draft_len_limit(4, 5, 7), 2);
  EXPECT_EQ(sequence.draft_len_limit(7, 5, 7), 0);
  request.params.max_draft_len = 1;
  EXPECT_EQ(Sequence(request, 0).draft_len_limit(4, 5, 100), 1);
  request.params.max_draft_len = 0;
  EXPECT_EQ(Sequence(request, 0).draft_len_limit(4, 5, 100), 0);
  request.params.max_draft_len = -1;
  request.params.max_tokens = 2000000000;  // no overflow
  EXPECT_EQ(Sequence(request, 0).draft_len_limit(4, 5, 2147483647), 5);
}

TEST(Sequence, NaNEndsItAndCommitsNothing) {
  Sequence sequence(request_of({1}, 5), 0);
  SequenceDecision decision = decision_of(0, -1);
  decision.failed = true;
  ResultEvent event;
  ASSERT_TRUE(sequence.commit(plan_of(sequence, {}), decision, kMaxModelLen, event));
  EXPECT_EQ(event.finish_reason, FinishReason::kError);
  EXPECT_EQ(event.error, "the model produced NaN or infinite logits");
  EXPECT_EQ(sequence.num_tokens(), 1);
}

TEST(Sequence, NothingAllowedEndsItWithAnotherSentence) {
  Sequence sequence(request_of({1}, 5), 0);
  SequenceDecision decision = decision_of(0, -1);
  decision.failed = decision.no_token_allowed = true;
  ResultEvent event;
  ASSERT_TRUE(sequence.commit(plan_of(sequence, {}), decision, kMaxModelLen, event));
  EXPECT_EQ(event.finish_reason, FinishReason::kError);
  EXPECT_TRUE(event.is_request_fault);
  EXPECT_EQ(event.error.rfind("no token is allowed to come next", 0), 0u) << event.error;
  EXPECT_EQ(sequence.num_tokens(), 1);
}

TEST(Sequence, PromptScoresAreGatheredOnceOverChunksAndARecomputation) {
  Request request = request_of({1, 2, 3, 4}, 5);
  request.params.prompt_logprobs = true;
  Sequence sequence(std::move(request), 0);
  const auto compute = [&](int32_t num_rows, ResultEvent& event) {
    SequencePlan plan = plan_of(sequence, {});
    plan.num_committed_rows = num_rows;
    const bool samples = plan.first_position + num_rows == sequence.num_tokens();
    SequenceDecision decision = decision_of(0, samples ? 7 : -1);
    for (int32_t i = plan.first_position; i < plan.first_position + num_rows && i + 1 < 4; ++i) {
      decision.prompt_logprobs.push_back({-0.5f, i + 1, {}});
    }
    return sequence.commit(plan, decision, kMaxModelLen, event);
  };
  ResultEvent event;
  EXPECT_FALSE(compute(2, event));
  sequence.forget_kv();
  EXPECT_FALSE(compute(1, event));
  EXPECT_TRUE(compute(3, event));
  ASSERT_EQ(event.prompt_logprobs.size(), 3u);
  for (int32_t i = 0; i < 3; ++i)
    EXPECT_EQ(event.prompt_logprobs[static_cast<size_t>(i)].rank, i + 1);
  event = {};
  EXPECT_TRUE(compute(1, event));
  EXPECT_TRUE(event.prompt_logprobs.empty());
}

TEST(Sequence, ScoringOnlyDropsTheSample) {
  Request request = request_of({1, 2}, 0);
  request.params.prompt_logprobs = true;
  Sequence sequence(std::move(request), 0);
  SequenceDecision decision = decision_of(0, 7);
  decision.prompt_logprobs.push_back({-0.5f, 1, {}});
  ResultEvent event;
  ASSERT_TRUE(sequence.commit(plan_of(sequence, {}), decision, kMaxModelLen, event));
  EXPECT_TRUE(event.tokens.empty());
  EXPECT_EQ(event.prompt_logprobs.size(), 1u);
  EXPECT_EQ(event.finish_reason, FinishReason::kLength);
  EXPECT_EQ(event.stats.num_rounds, 0);
}

}  // namespace
}  // namespace outrider
