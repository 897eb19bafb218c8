// See planner.h.
#include "scheduler/batching/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "scheduler/batching/round_builder.h"

namespace outrider {
namespace {

void require(bool holds, const char* sentence) {
  if (!holds) throw Error(sentence);
}

PlannerConfig checked(PlannerConfig config) {
  require(config.block_size > 0, "block_size must be at least 1");
  require(config.num_blocks > 0, "the KV memory must hold at least 1 block");
  require(config.max_num_seqs > 0, "max_num_seqs must be at least 1");
  require(config.max_num_batched_tokens > 0, "max_num_batched_tokens must be at least 1");
  require(config.max_model_len > 0, "max_model_len must be at least 1");
  require(config.priority_aging_rounds >= 0, "priority_aging_rounds must not be negative");
  require(config.num_speculative_tokens >= 0, "num_speculative_tokens must not be negative");
  require(config.prompt_lookup_min > 0, "prompt_lookup_min must be at least 1");
  require(config.prompt_lookup_max >= config.prompt_lookup_min,
          "prompt_lookup_max must be at least prompt_lookup_min");
  if (config.draft_method == DraftMethod::kNone) config.num_speculative_tokens = 0;
  return config;
}

}  // namespace

Planner::Planner(const PlannerConfig& config)
    : config_(checked(config)),
      pool_(config_.num_blocks, config_.block_size),
      drafts_(config_, pool_) {
  if (config_.reports_freed_blocks) pool_.blocks.track_freed();
}

// A line in which a better priority is a head start. With priority - waited / aging as what counts,
// two that wait keep their order for ever, since both wait on; so a number fixed at arrival does.
int64_t Planner::turn_of(const Request& request) const {
  if (config_.scheduling_policy == SchedulingPolicy::kFcfs || config_.priority_aging_rounds == 0) {
    return 0;
  }
  const int64_t priority = std::clamp(request.priority, -kLargestPriority, kLargestPriority);
  return num_rounds_ + priority * config_.priority_aging_rounds;
}

std::unique_ptr<Sequence> Planner::retire(uint64_t id) {
  std::unique_ptr<Sequence> sequence = pool_.remove(id);
  if (sequence->scheduled_at) ends_.push_back(id);
  drafts_.sequence_ended(*sequence);
  return sequence;
}

std::string Planner::refusal(const Request& request) const {
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = request.params.max_tokens;
  if (num_prompt == 0) return "the prompt is empty";
  if (config_.scheduling_policy == SchedulingPolicy::kFcfs && request.priority != 0) {
    return fmt::format(
        "priority is {}, and this server runs requests in order of arrival "
        "(scheduling_policy fcfs)",
        request.priority);
  }
  if (max_tokens < 0) return fmt::format("max_tokens is {}, it must not be negative", max_tokens);
  if (!request.resumed.empty() && std::ssize(request.resumed) >= max_tokens) {
    return fmt::format(
        "max_tokens is {}, and {} tokens are there already", max_tokens, request.resumed.size());
  }
  if (num_prompt + max_tokens > config_.max_model_len) {
    return fmt::format(
        "the model's maximum length is {} tokens; the prompt has {} and {} more were asked for",
        config_.max_model_len,
        num_prompt,
        max_tokens);
  }
  // The last token is never computed; a prompt that is only scored is computed whole.
  const int64_t num_positions = num_prompt + std::max<int64_t>(max_tokens, 1) - 1;
  const int64_t num_blocks = (num_positions + config_.block_size - 1) / config_.block_size;
  if (num_blocks > config_.num_blocks) {
    return fmt::format("the request needs {} KV blocks of {} tokens and the server has {}",
                       num_blocks,
                       config_.block_size,
                       config_.num_blocks);
  }
  return {};
}

void Planner::add(Request request) {
  OUTRIDER_CHECK(request.id != 0);
  const std::string reason = refusal(request);
  const int64_t turn = turn_of(request);
  auto sequence = std::make_unique<Sequence>(std::move(request), num_arrivals_++, turn);
  if (!reason.empty()) {
    sequence->finish(FinishReason::kError, reason);
  } else if (sequence->params().max_tokens == 0 && !sequence->params().prompt_logprobs) {
    sequence->finish(FinishReason::kLength);
  } else {
    const bool is_shaped = config_.grammars != nullptr && drafts_.shapes_by_grammar();
    if (is_shaped && sequence->params().grammar)
      sequence->grammar = config_.grammars->mask(*sequence->params().grammar);
    pool_.add(std::move(sequence));
  }
}

void Planner::cancel(uint64_t request_id) {
  if (pool_.find(request_id) == nullptr) return;
  retire(request_id)->finish(FinishReason::kAborted);
}

void Planner::fail_all(const std::string& error) {
  while (!pool_.empty()) {
    const auto& queue = pool_.running().empty() ? pool_.waiting() : pool_.running();
    retire(queue.begin()->second->id())->finish(FinishReason::kAborted, error);
  }
}

RoundPlan Planner::plan() {
  OUTRIDER_CHECK(!in_flight_);
  RoundPlan plan;
  RoundBuilder(config_, drafts_, pool_, counters_).build(plan);
  num_seen_ = num_arrivals_;
  OUTRIDER_CHECK(plan.sequences.empty() == idle());
  if (plan.sequences.empty())
    return plan;  // not executed, so what has ended is told with the next one
  plan.ends = std::exchange(ends_, {});
  plan.freed = pool_.blocks.take_freed();
  ++num_rounds_;
  in_flight_ = true;
  return plan;
}

void Planner::apply(const RoundPlan& plan, const RoundDecision& decision) {
  for (PendingResult& result : decide(plan, decision)) std::move(result).deliver();
}

std::vector<PendingResult> Planner::decide(const RoundPlan& plan, const RoundDecision& decision) {
  if (plan.sequences.empty()) return {};
  OUTRIDER_CHECK(in_flight_);
  OUTRIDER_CHECK(decision.sequences.size() == plan.sequences.size());
  in_flight_ = false;
  drafts_.begin_results();
  std::vector<PendingResult> results;
  results.reserve(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    OUTRIDER_CHECK(decision.sequences[i].sequence_id == plan.sequences[i].sequence_id);
    auto result = apply_one(plan.sequences[i], decision.sequences[i]);
    if (result) results.push_back(std::move(*result));
  }
  return results;
}

std::optional<PendingResult> Planner::apply_one(const SequencePlan& plan,
                                                const SequenceDecision& decision) {
  Sequence* sequence = pool_.find(plan.sequence_id);
  if (sequence == nullptr) return std::nullopt;  // cancelled while the ranks computed
  ResultEvent event;
  if (!sequence->commit(plan, decision, config_.max_model_len, event)) return std::nullopt;
  settle_blocks(*sequence, decision);
  drafts_.sequence_committed(*sequence, plan, decision);
  if (event.finish_reason == FinishReason::kNone) return sequence->result(std::move(event));
  return retire(plan.sequence_id)->result(std::move(event));
}

// The sequence has sampled or failed. Its logits depend on the KV of every position before them, so
// finite ones vouch for all of it, chunks without logits too; and with bad ones nobody may begin
// with a block it holds, whoever computed that. (Masks that forbid every token say nothing of KV.)
void Planner::settle_blocks(Sequence& sequence, const SequenceDecision& decision) {
  if (!config_.enable_prefix_caching) return;
  if (decision.failed) {
    if (!decision.no_token_allowed) pool_.blocks.withdraw(sequence.table);
    return;
  }
  // After a stop among the accepted tokens there is more KV than text.
  const int32_t num_known = std::min(sequence.num_computed(), sequence.num_tokens());
  pool_.blocks.publish(sequence.table, sequence.tokens(), num_known, sequence.request().cache_salt);
}

std::vector<LateDraftToken> Planner::late_draft_tokens(const RoundPlan& plan) const {
  std::vector<LateDraftToken> bonus_drafts;
  for (const SequencePlan& planned : plan.sequences) {
    const Sequence* sequence = pool_.find(planned.sequence_id);
    if (sequence == nullptr || planned.bonus_draft) continue;
    if (auto token = drafts_.late_draft_token(*sequence)) {
      bonus_drafts.push_back({planned.sequence_id, std::move(*token)});
    }
  }
  return bonus_drafts;
}

void Planner::set_draft_len(int32_t draft_len) {
  OUTRIDER_CHECK(draft_len >= 0 && draft_len <= config_.num_speculative_tokens);
  drafts_.set_draft_len(draft_len);
}

void Planner::set_draft_lens(std::span<const SequenceChoice> choices) {
  for (const SequenceChoice& choice : choices) {
    Sequence* sequence = pool_.find(choice.sequence_id);
    if (sequence == nullptr) continue;
    sequence->draft_view.verify_len = choice.draft_len;
    sequence->draft_view.wanted_len = choice.wanted_len;
    sequence->draft_view.uses_backup = choice.uses_backup && sequence->draft_view.backup;
  }
}

// Who waits though a plan was made since did not fit in.
RoundState Planner::draft_state() const {
  RoundState state = drafts_.state();
  const auto num_new = std::min(num_arrivals_ - num_seen_, pool_.waiting().size());
  state.num_running = static_cast<int32_t>(std::min<uint64_t>(
      pool_.running().size() + num_new, static_cast<uint64_t>(config_.max_num_seqs)));
  return state;
}

PlannerCounters Planner::counters() const {
  PlannerCounters counters = counters_;
  counters.num_running = static_cast<int32_t>(pool_.running().size());
  counters.num_waiting = num_waiting();
  counters.num_free_blocks = pool_.blocks.num_free();
  return counters;
}

}  // namespace outrider
