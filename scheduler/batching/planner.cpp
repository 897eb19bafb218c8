// See planner.h.
#include "scheduler/batching/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "scheduler/batching/draft_ledger.h"
#include "scheduler/batching/round_builder.h"
#include "scheduler/batching/sequence_pool.h"

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

struct Planner::State {
  explicit State(const PlannerConfig& planner_config)
      : config(checked(planner_config)),
        pool(config.num_blocks, config.block_size),
        drafts(config) {
    if (config.reports_freed_blocks) pool.blocks.track_freed();
  }

  int64_t turn_of(const Request& request) const;
  // Takes the sequence out of everything; its last event has been or will be pushed by the caller.
  std::unique_ptr<Sequence> retire(uint64_t id);
  std::optional<PendingResult> apply_one(const SequencePlan& plan,
                                         const SequenceDecision& decision);
  void settle_blocks(Sequence& sequence, const SequenceDecision& decision);

  const PlannerConfig config;
  SequencePool pool;
  DraftLedger drafts;
  std::vector<uint64_t> ends;  // started on the ranks, not yet told to be over
  uint64_t num_arrivals = 0;
  uint64_t num_seen = 0;     // of them, by a plan
  int64_t num_rounds = 0;    // the only time there is
  PlannerCounters counters;  // those since the start
  bool in_flight = false;    // planned and not yet applied
};

Planner::Planner(const PlannerConfig& config) : state_(std::make_unique<State>(config)) {}
Planner::~Planner() = default;

// A line in which a better priority is a head start. With priority - waited / aging as what counts,
// two that wait keep their order for ever, since both wait on; so a number fixed at arrival does.
int64_t Planner::State::turn_of(const Request& request) const {
  if (config.scheduling_policy == SchedulingPolicy::kFcfs || config.priority_aging_rounds == 0) {
    return 0;
  }
  const int64_t priority = std::clamp(request.priority, -kLargestPriority, kLargestPriority);
  return num_rounds + priority * config.priority_aging_rounds;
}

std::unique_ptr<Sequence> Planner::State::retire(uint64_t id) {
  std::unique_ptr<Sequence> sequence = pool.remove(id);
  if (sequence->scheduled_at) ends.push_back(id);
  drafts.sequence_ended(*sequence);
  return sequence;
}

std::string Planner::refusal(const Request& request) const {
  const PlannerConfig& config = state_->config;
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = request.params.max_tokens;
  if (num_prompt == 0) return "the prompt is empty";
  if (config.scheduling_policy == SchedulingPolicy::kFcfs && request.priority != 0) {
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
  if (num_prompt + max_tokens > config.max_model_len) {
    return fmt::format(
        "the model's maximum length is {} tokens; the prompt has {} and {} more were asked for",
        config.max_model_len,
        num_prompt,
        max_tokens);
  }
  // The last token is never computed; a prompt that is only scored is computed whole.
  const int64_t num_positions = num_prompt + std::max<int64_t>(max_tokens, 1) - 1;
  const int64_t num_blocks = (num_positions + config.block_size - 1) / config.block_size;
  if (num_blocks > config.num_blocks) {
    return fmt::format("the request needs {} KV blocks of {} tokens and the server has {}",
                       num_blocks,
                       config.block_size,
                       config.num_blocks);
  }
  return {};
}

void Planner::add(Request request) {
  OUTRIDER_CHECK(request.id != 0);
  const std::string reason = refusal(request);
  const int64_t turn = state_->turn_of(request);
  auto sequence = std::make_unique<Sequence>(std::move(request), state_->num_arrivals++, turn);
  if (!reason.empty()) {
    sequence->finish(FinishReason::kError, reason);
  } else if (sequence->params().max_tokens == 0 && !sequence->params().prompt_logprobs) {
    sequence->finish(FinishReason::kLength);
  } else {
    const PlannerConfig& config = state_->config;
    const bool is_shaped = config.grammars != nullptr && state_->drafts.shapes_by_grammar();
    if (is_shaped && sequence->params().grammar)
      sequence->grammar = config.grammars->mask(*sequence->params().grammar);
    state_->pool.add(std::move(sequence));
  }
}

void Planner::cancel(uint64_t request_id) {
  if (state_->pool.find(request_id) == nullptr) return;
  state_->retire(request_id)->finish(FinishReason::kAborted);
}

void Planner::fail_all(const std::string& error) {
  const SequencePool& pool = state_->pool;
  while (!pool.empty()) {
    const auto& queue = pool.running().empty() ? pool.waiting() : pool.running();
    state_->retire(queue.begin()->second->id())->finish(FinishReason::kAborted, error);
  }
}

int32_t Planner::num_waiting() const { return static_cast<int32_t>(state_->pool.waiting().size()); }

bool Planner::idle() const { return state_->pool.empty(); }

bool Planner::wants_draft() const { return state_->drafts.lacks_tokens(state_->pool); }

bool Planner::offer(PackedBlock block) {
  return state_->drafts.offer(state_->pool, std::move(block));
}

bool Planner::awaits_tokens(uint64_t sequence_id) const {
  return state_->drafts.awaits_tokens(state_->pool, sequence_id);
}

RoundPlan Planner::plan() {
  OUTRIDER_CHECK(!state_->in_flight);
  RoundPlan plan;
  RoundBuilder(state_->config, state_->drafts, state_->pool, state_->counters).build(plan);
  state_->num_seen = state_->num_arrivals;
  OUTRIDER_CHECK(plan.sequences.empty() == idle());
  if (plan.sequences.empty())
    return plan;  // not executed, so what has ended is told with the next one
  plan.ends = std::exchange(state_->ends, {});
  plan.freed = state_->pool.blocks.take_freed();
  ++state_->num_rounds;
  state_->in_flight = true;
  return plan;
}

void Planner::apply(const RoundPlan& plan, const RoundDecision& decision) {
  for (PendingResult& result : decide(plan, decision)) std::move(result).deliver();
}

std::vector<PendingResult> Planner::decide(const RoundPlan& plan, const RoundDecision& decision) {
  if (plan.sequences.empty()) return {};
  OUTRIDER_CHECK(state_->in_flight);
  OUTRIDER_CHECK(decision.sequences.size() == plan.sequences.size());
  state_->in_flight = false;
  state_->drafts.begin_results();
  std::vector<PendingResult> results;
  results.reserve(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    OUTRIDER_CHECK(decision.sequences[i].sequence_id == plan.sequences[i].sequence_id);
    auto result = state_->apply_one(plan.sequences[i], decision.sequences[i]);
    if (result) results.push_back(std::move(*result));
  }
  return results;
}

std::optional<PendingResult> Planner::State::apply_one(const SequencePlan& plan,
                                                       const SequenceDecision& decision) {
  Sequence* sequence = pool.find(plan.sequence_id);
  if (sequence == nullptr) return std::nullopt;  // cancelled while the ranks computed
  ResultEvent event;
  if (!sequence->commit(plan, decision, config.max_model_len, event)) return std::nullopt;
  settle_blocks(*sequence, decision);
  drafts.sequence_committed(*sequence, plan, decision);
  if (event.finish_reason == FinishReason::kNone) return sequence->result(std::move(event));
  return retire(plan.sequence_id)->result(std::move(event));
}

// The sequence has sampled or failed. Its logits depend on the KV of every position before them, so
// finite ones vouch for all of it, chunks without logits too; and with bad ones nobody may begin
// with a block it holds, whoever computed that. (Masks that forbid every token say nothing of KV.)
void Planner::State::settle_blocks(Sequence& sequence, const SequenceDecision& decision) {
  if (!config.enable_prefix_caching) return;
  if (decision.failed) {
    if (!decision.no_token_allowed) pool.blocks.withdraw(sequence.table);
    return;
  }
  // After a stop among the accepted tokens there is more KV than text.
  const int32_t num_known = std::min(sequence.num_computed(), sequence.num_tokens());
  pool.blocks.publish(sequence.table, sequence.tokens(), num_known, sequence.request().cache_salt);
}

std::vector<LateDraftToken> Planner::late_draft_tokens(const RoundPlan& plan) const {
  std::vector<LateDraftToken> bonus_drafts;
  for (const SequencePlan& planned : plan.sequences) {
    const Sequence* sequence = state_->pool.find(planned.sequence_id);
    if (sequence == nullptr || planned.bonus_draft) continue;
    if (auto token = state_->drafts.late_draft_token(*sequence)) {
      bonus_drafts.push_back({planned.sequence_id, std::move(*token)});
    }
  }
  return bonus_drafts;
}

DraftRequest Planner::take_draft_request(bool asks) {
  return state_->drafts.take_request(state_->pool, asks);
}

void Planner::set_draft_available(bool available) {
  state_->drafts.set_available(state_->pool, available);
}

void Planner::set_draft_len(int32_t draft_len) {
  OUTRIDER_CHECK(draft_len >= 0 && draft_len <= state_->config.num_speculative_tokens);
  state_->drafts.set_draft_len(draft_len);
}

void Planner::set_draft_lens(std::span<const SequenceChoice> choices) {
  for (const SequenceChoice& choice : choices) {
    Sequence* sequence = state_->pool.find(choice.sequence_id);
    if (sequence == nullptr) continue;
    sequence->draft_view.verify_len = choice.draft_len;
    sequence->draft_view.wanted_len = choice.wanted_len;
    sequence->draft_view.uses_backup = choice.uses_backup && sequence->draft_view.backup;
  }
}

// Who waits though a plan was made since did not fit in.
RoundState Planner::draft_state() const {
  const SequencePool& pool = state_->pool;
  RoundState state = state_->drafts.state(pool);
  const auto num_new = std::min(state_->num_arrivals - state_->num_seen, pool.waiting().size());
  state.num_running = static_cast<int32_t>(std::min<uint64_t>(
      pool.running().size() + num_new, static_cast<uint64_t>(state_->config.max_num_seqs)));
  return state;
}

DraftNews Planner::take_draft_news() { return state_->drafts.take_news(); }

DraftCounters Planner::draft_counters() const { return state_->drafts.counters(); }

PlannerCounters Planner::counters() const {
  PlannerCounters counters = state_->counters;
  counters.num_running = static_cast<int32_t>(state_->pool.running().size());
  counters.num_waiting = num_waiting();
  counters.num_free_blocks = state_->pool.blocks.num_free();
  return counters;
}

std::string Planner::fault() const { return state_->pool.fault(); }

}  // namespace outrider
