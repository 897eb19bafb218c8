// See sequence.h.
#include "scheduler/batching/sequence.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/base/telemetry/trace.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

// Of the index-th token of a round.
TokenOrigin origin_of(size_t index, const SequencePlan& plan, const SequenceDecision& decision) {
  const auto num_accepted = static_cast<size_t>(decision.num_accepted);
  if (index < num_accepted) return TokenOrigin::kAccepted;
  if (num_accepted < plan.draft.size()) return TokenOrigin::kCorrected;
  if (!plan.bonus_draft) return plan.draft.empty() ? TokenOrigin::kPlain : TokenOrigin::kBonus;
  return bonus_draft_accepted(plan, decision) ? TokenOrigin::kAccepted : TokenOrigin::kCorrected;
}

}  // namespace

Sequence::Sequence(Request request, uint64_t arrival, int64_t turn)
    : request_(std::move(request)), arrival_(arrival), turn_(turn), tokens_(request_.prompt) {
  if (request_.resumed.empty()) return;
  tokens_.insert(tokens_.end(), request_.resumed.begin(), request_.resumed.end());
  // The rounds begin again, at positions that blocks of the first life were judged at: their noise
  // has decided already.
  SamplingParams& params = request_.params;
  if (resolve_rule(params) == VerifyRule::kBlock)
    params.noise_seed = mix_seed(params.noise_seed, request_.resumed.size());
}

int32_t Sequence::num_positions_at_most(int32_t max_model_len) const {
  const int64_t last_len = static_cast<int64_t>(num_prompt_tokens()) + params().max_tokens;
  return std::max(num_tokens(),
                  static_cast<int32_t>(std::min<int64_t>(last_len, max_model_len)) - 1);
}

int32_t Sequence::draft_len_limit(int32_t num_tokens,
                                  int32_t server_draft_len,
                                  int32_t max_model_len) const {
  int64_t limit = server_draft_len;
  if (params().max_draft_len >= 0) limit = std::min<int64_t>(limit, params().max_draft_len);
  const int64_t last_len = std::min<int64_t>(
      static_cast<int64_t>(num_prompt_tokens()) + params().max_tokens, max_model_len);
  limit = std::min(limit, last_len - num_tokens - 1);
  return static_cast<int32_t>(std::max<int64_t>(limit, 0));
}

void Sequence::start_after(int32_t num_positions) {
  OUTRIDER_CHECK(num_computed_ == 0 && num_positions <= num_reusable());
  num_computed_ = num_positions;
}

int32_t Sequence::num_reusable() const {
  const bool scores_prompt = params().prompt_logprobs && round_ == 0;
  return scores_prompt ? 0 : num_tokens() - 1;
}

bool Sequence::commit(const SequencePlan& plan,
                      const SequenceDecision& decision,
                      int32_t max_model_len,
                      ResultEvent& event) {
  if (decision.failed) {
    event.finish_reason = FinishReason::kError;
    event.is_request_fault = decision.no_token_allowed;
    event.error =
        decision.no_token_allowed
            ? "no token is allowed to come next (allowed_token_ids, bad_words, logit_bias "
              "and min_tokens together forbid all of them)"
            : "the model produced NaN or infinite logits";
    describe(event);
    return true;
  }
  gather_prompt_scores(plan, decision);
  const int32_t num_computed = plan.first_position + plan.num_committed_rows;
  if (num_computed < num_tokens()) {
    num_computed_ = num_computed;
    return false;
  }
  if (params().max_tokens == 0) {
    event.finish_reason = FinishReason::kLength;
  } else {
    count(plan, decision);
    append(plan, decision, max_model_len, event);
  }
  ++round_;
  if (params().prompt_logprobs) event.prompt_logprobs = std::exchange(prompt_scores_, {});
  describe(event);
  return true;
}

// Row i scores token i + 1. After a preemption rows are computed again; what is already here is not
// taken twice, and once handed out (round_ > 0) nothing is gathered any more.
void Sequence::gather_prompt_scores(const SequencePlan& plan, const SequenceDecision& decision) {
  if (!params().prompt_logprobs || round_ > 0) return;
  const int32_t end =
      std::min(plan.first_position + plan.num_committed_rows, num_prompt_tokens() - 1);
  const int32_t num_expected = std::max(end - plan.first_position, 0);
  OUTRIDER_CHECK(static_cast<int32_t>(decision.prompt_logprobs.size()) == num_expected);
  for (int32_t i = 0; i < num_expected; ++i) {
    const size_t slot = static_cast<size_t>(plan.first_position + i);
    if (slot < prompt_scores_.size()) continue;
    prompt_scores_.push_back(decision.prompt_logprobs[static_cast<size_t>(i)]);
  }
}

void Sequence::count(const SequencePlan& plan, const SequenceDecision& decision) {
  ++stats_.num_rounds;
  const size_t draft_len = plan.draft.size();
  if (plan.bonus_draft && decision.num_accepted == static_cast<int32_t>(draft_len)) {
    ++stats_.num_bonus_drafts;
    stats_.num_accepted_bonus_drafts += bonus_draft_accepted(plan, decision) ? 1 : 0;
  }
  if (draft_len == 0) return;
  ++stats_.num_spec_rounds;
  stats_.num_ready_rounds += plan.source == BlockSource::kSpeculationCache ? 1 : 0;
  stats_.num_waited_rounds += plan.source == BlockSource::kDraftModel ? 1 : 0;
  stats_.num_draft_tokens += static_cast<int32_t>(draft_len);
  stats_.num_accepted_tokens += decision.num_accepted;
  if (stats_.drafted_per_position.size() < draft_len) {
    stats_.drafted_per_position.resize(draft_len);
    stats_.accepted_per_position.resize(draft_len);
  }
  for (size_t i = 0; i < draft_len; ++i) {
    ++stats_.drafted_per_position[i];
    if (static_cast<int32_t>(i) < decision.num_accepted) ++stats_.accepted_per_position[i];
  }
}

void Sequence::append(const SequencePlan& plan,
                      const SequenceDecision& decision,
                      int32_t max_model_len,
                      ResultEvent& event) {
  const size_t num_accepted = static_cast<size_t>(decision.num_accepted);
  OUTRIDER_CHECK(decision.num_accepted >= 0 && num_accepted <= plan.draft.size());
  OUTRIDER_CHECK(decision.next_token >= 0);
  // The accepted rows' KV was computed with the right tokens and stays; the token after them has
  // none yet.
  num_computed_ = num_tokens() + decision.num_accepted;
  for (size_t i = 0; i <= num_accepted; ++i) {
    const int32_t token = i < num_accepted ? plan.draft[i].token : decision.next_token;
    const std::vector<int32_t>& stops = params().stop_token_ids;
    const int32_t num_output = num_output_tokens();
    if (num_output >= params().min_tokens &&
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      event.finish_reason = FinishReason::kStop;
      event.stop_token = token;
      event.stop_token_origin = origin_of(i, plan, decision);
      if (i < decision.logprobs.size()) event.stop_token_logprobs = decision.logprobs[i];
      return;
    }
    tokens_.push_back(token);
    event.tokens.push_back(token);
    event.origins.push_back(origin_of(i, plan, decision));
    if (i < decision.logprobs.size()) event.logprobs.push_back(decision.logprobs[i]);
    if (num_output + 1 >= params().max_tokens || num_tokens() >= max_model_len) {
      event.finish_reason = FinishReason::kLength;
      return;
    }
  }
}

void Sequence::describe(ResultEvent& event) const {
  event.stats = stats_;
  event.num_cached_tokens = num_cached_prompt_tokens;
  event.num_preemptions = num_preemptions;
  event.scheduled_at = scheduled_at;
}

void Sequence::finish(FinishReason reason, const std::string& error) {
  ResultEvent event;
  event.finish_reason = reason;
  event.error = error;
  describe(event);
  result(std::move(event)).deliver();
}

void Sequence::trace_request() const {
  const auto arrival = request_.arrival.time_since_epoch();
  const int64_t begin_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(arrival).count();
  trace_sequence(TraceKind::kRequest,
                 id(),
                 {begin_ns, trace_now_ns()},
                 {num_prompt_tokens(), num_output_tokens()});
}

PendingResult Sequence::result(ResultEvent event) const {
  if (event.finish_reason != FinishReason::kNone) trace_request();
  return {request_.stream, std::move(event)};
}

}  // namespace outrider
