// See coordinator.h.
#include "runtime/ranks/coordinator.h"

#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/agreement.h"
#include "runtime/ranks/round_wire.h"

namespace outrider {
namespace {

using Clock = JobClock;

constexpr auto kIdleCheckInterval = std::chrono::milliseconds(100);
constexpr double kAverageWeight = 0.1;
constexpr int32_t kLongestAdapted = 4;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The coordinator is the only one who adds to such a counter.
void raise(Counter& counter, uint64_t total) {
  counter.add(static_cast<double>(total) - counter.value());
}

void update_average(double* average, double value) {
  *average = *average == 0 ? value : (1 - kAverageWeight) * *average + kAverageWeight * value;
}

}  // namespace

Coordinator::Coordinator(const Parts& parts)
    : world_(parts.world),
      layout_(parts.layout),
      target_(parts.target),
      info_(parts.info),
      metrics_(parts.metrics),
      max_num_queued_reqs_(parts.max_num_queued_reqs),
      verify_mode_(parts.verify_mode),
      num_blocks_(parts.planner.num_blocks),
      planner_(parts.planner),
      book_check_(
          parts.checks, parts.metrics.kv_accounting_faults, [this] { return planner_.fault(); }),
      draft_length_(parts.adaptive_draft_len
                        ? std::min(kLongestAdapted, parts.planner.num_speculative_tokens)
                        : parts.planner.num_speculative_tokens),
      adaptive_draft_len_(parts.adaptive_draft_len && parts.draft_patience_s == 0 &&
                          parts.planner.draft_method != DraftMethod::kNone),
      draft_len_(draft_length_.choose(1)) {
  if (layout_.has_draft) {
    draft_ = std::make_unique<DraftLink>(
        world_, layout_.draft_rank(), parts.epoch, parts.draft_patience_s);
    draft_state_ = DraftState::kUp;
  }
  if (adaptive_draft_len_) planner_.set_draft_len(draft_len_);
  planner_.set_draft_available(layout_.has_draft);
  status_.ready = true;
  publish_status();
}

AdmissionResult Coordinator::submit(Request request) {
  if (request.params.verify_mode == VerifyMode::kAuto) request.params.verify_mode = verify_mode_;
  if (std::string reason = planner_.refusal(request); !reason.empty()) {
    return {Admission::kRefused, std::move(reason)};
  }
  const int32_t num_waiting = status().num_waiting;
  std::lock_guard lock(inbox_mutex_);
  if (stopping_) return {Admission::kShuttingDown, "the server is shutting down"};
  if (num_waiting + static_cast<int32_t>(inbox_.requests.size()) >= max_num_queued_reqs_) {
    return {Admission::kQueueFull,
            fmt::format("{} requests are waiting already, which is the most this server queues",
                        num_waiting)};
  }
  inbox_.requests.push_back(std::move(request));
  inbox_filled_.notify_one();
  return {};
}

void Coordinator::cancel(uint64_t request_id) {
  std::lock_guard lock(inbox_mutex_);
  inbox_.cancels.push_back(request_id);
  inbox_filled_.notify_one();
}

EngineStatus Coordinator::status() const {
  std::lock_guard lock(status_mutex_);
  EngineStatus status = status_;
  const bool busy = status.num_running + status.num_waiting > 0;
  status.last_round_age_s = busy ? seconds_since(last_round_end_) : 0;
  return status;
}

RoundTimes Coordinator::round_times() const {
  std::lock_guard lock(status_mutex_);
  return times_;
}

void Coordinator::request_stop(Stop when) {
  {
    std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
    stop_now_ = stop_now_ || when == Stop::kNow;
    inbox_filled_.notify_one();
  }
  std::lock_guard lock(status_mutex_);
  status_.ready = false;
  status_.draining = true;
}

void Coordinator::loop() {
  while (true) {
    take_inbox();
    bool stopping;
    bool now;
    {
      std::lock_guard lock(inbox_mutex_);
      stopping = stopping_ && inbox_.requests.empty();
      now = stop_now_;
    }
    if (now) planner_.fail_all("the server was stopped before this request was done");
    if (planner_.idle()) arrivals_.clear();  // what ended before its first round
    if (planner_.idle()) book_check_.when_idle();
    if (planner_.idle() && stopping) break;
    if (planner_.idle() || !run_round()) {
      publish_status();
      wait_for_work();
    }
  }
  shut_down();
}

void Coordinator::take_inbox() {
  Inbox inbox;
  {
    std::lock_guard lock(inbox_mutex_);
    std::swap(inbox, inbox_);
  }
  for (Request& request : inbox.requests) {
    arrivals_[request.id] = request.arrival;
    planner_.add(std::move(request));
  }
  for (uint64_t id : inbox.cancels) {
    arrivals_.erase(id);
    planner_.cancel(id);
  }
}

void Coordinator::wait_for_work() {
  {
    std::unique_lock lock(inbox_mutex_);
    inbox_filled_.wait_for(lock, kIdleCheckInterval, [&] {
      return !inbox_.requests.empty() || !inbox_.cancels.empty() || stopping_;
    });
  }
  world_.check_alive(layout_.num_targets);
  hear_draft();
}

bool Coordinator::run_round() {
  const auto begin = Clock::now();
  wait_for_draft();
  metrics_.round_draft_wait_seconds.observe(seconds_since(begin));

  RoundPlan plan = planner_.plan();
  choose_draft_len();
  tell_draft();  // admitted sequences: the draft reads their prompts while the target does
  if (plan.sequences.empty() && plan.ends.empty() && plan.starts.empty()) return false;
  for (const SequenceStart& start : plan.starts) {
    const auto arrival = arrivals_.extract(start.sequence_id);
    if (arrival) metrics_.request_queue_time_seconds.observe(seconds_since(arrival.mapped()));
  }
  const auto compute_begin = Clock::now();
  plan.round = ++round_;
  broadcast(plan);
  const RoundDecision decision = target_.execute(plan);
  check_agreement(world_, layout_, round_, digest(round_, decision));
  const double compute_s = seconds_since(compute_begin);

  planner_.apply(plan, decision);
  book_check_.after_round();
  count_round(plan, decision, compute_s);
  choose_draft_len();
  tell_draft();
  metrics_.round_forward_seconds.observe(compute_s);
  metrics_.round_seconds.observe(seconds_since(begin));
  publish_status();
  return true;
}

void Coordinator::wait_for_draft() {
  if (!draft_) return;
  hear_draft();
  if (draft_state_ != DraftState::kUp || !planner_.wants_draft()) return;
  // Each accepted token saves the target a round; waiting longer than that cannot pay.
  const auto deadline = draft_->deadline(times_.plain_round_s * std::max(1.0, accepted_per_block_));
  Backoff backoff;
  backoff.end_at(deadline);
  while (planner_.wants_draft() && Clock::now() < deadline) {
    world_.pause(backoff);
    hear_draft();
    if (draft_state_ != DraftState::kUp) return;
  }
  const bool complete = !planner_.wants_draft();
  draft_->note_wait(complete);
  if (complete) draft_length_.note_wait(draft_len_, backoff.waited_s());
}

void Coordinator::hear_draft() {
  if (!draft_) return;
  const auto now = Clock::now();
  for (const DraftReply& reply : draft_->receive(now)) {
    for (const DraftBlock& block : reply.blocks) planner_.offer(block);
  }
  const DraftState state = draft_->update_state(now);
  if (state == draft_state_) return;
  draft_state_ = state;
  if (state == DraftState::kDown) {
    log_warning("the draft worker (rank {}) does not answer: going on without it",
                layout_.draft_rank());
  } else {
    log_info("the draft worker answers again");
  }
  planner_.set_draft_available(state == DraftState::kUp);
}

void Coordinator::tell_draft() {
  if (draft_) draft_->send(planner_.take_draft_request(), Clock::now());
}

void Coordinator::choose_draft_len() {
  if (!adaptive_draft_len_) return;
  draft_len_ = draft_length_.choose(planner_.counters().num_running);
  planner_.set_draft_len(draft_len_);
}

void Coordinator::broadcast(const RoundPlan& plan) {
  if (layout_.num_targets == 1) return;
  const Bytes bytes = encode(plan);
  for (int rank = 1; rank < layout_.num_targets; ++rank) world_.post(rank, bytes);
  num_plan_bytes_ += bytes.size() * static_cast<size_t>(layout_.num_targets - 1);
}

void Coordinator::shut_down() {
  RoundPlan plan;
  plan.round = ++round_;
  plan.shutdown = true;
  broadcast(plan);
  if (draft_ && !draft_->shut_down()) world_.end_unresponsive(layout_.draft_rank());
}

void Coordinator::count_round(const RoundPlan& plan,
                              const RoundDecision& decision,
                              double round_s) {
  int64_t num_tokens = 0;
  bool any_draft = false;
  bool any_prefill = false;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& planned = plan.sequences[i];
    const SequenceDecision& decided = decision.sequences[i];
    if (decided.failed && !decided.no_token_allowed) metrics_.logits_not_finite.add();
    any_prefill = any_prefill || planned.num_committed_rows > 1;
    num_tokens += planned.num_committed_rows + static_cast<int64_t>(planned.draft.size());
    if (planned.draft.empty()) continue;
    any_draft = true;
    metrics_.spec_decode_num_drafts.add();
    metrics_.spec_decode_num_draft_tokens.add(static_cast<double>(planned.draft.size()));
    metrics_.spec_decode_num_accepted_tokens.add(decided.num_accepted);
    update_average(&accepted_per_block_, decided.num_accepted);
    draft_length_.note_verdict(static_cast<int32_t>(planned.draft.size()), decided.num_accepted);
    for (int32_t j = 0; j < decided.num_accepted; ++j) {
      metrics_.accepted_tokens_at(static_cast<size_t>(j)).add();
    }
  }
  metrics_.rounds.add();
  metrics_.iteration_tokens.observe(static_cast<double>(num_tokens));
  if (any_prefill) return;
  draft_length_.note_round(static_cast<int32_t>(num_tokens), round_s);
  std::lock_guard lock(status_mutex_);
  update_average(any_draft ? &times_.verify_round_s : &times_.plain_round_s, round_s);
  (any_draft ? times_.verify_total_s : times_.plain_total_s) += round_s;
  ++(any_draft ? times_.num_verify_rounds : times_.num_plain_rounds);
}

void Coordinator::publish_traffic() {
  raise(metrics_.link_bytes_plan, num_plan_bytes_);
  raise(metrics_.link_bytes_partial_sums, target_.model().sum_traffic().num_bytes);
  raise(metrics_.link_bytes_sampling, target_.traffic().num_bytes);
  raise(metrics_.sampling_collectives, target_.traffic().num_collectives);
  if (!draft_) return;
  raise(metrics_.link_bytes_to_draft, draft_->num_sent_bytes());
  raise(metrics_.link_bytes_from_draft, draft_->num_received_bytes());
}

void Coordinator::publish_status() {
  const PlannerCounters counters = planner_.counters();
  metrics_.num_requests_running.set(counters.num_running);
  metrics_.num_requests_waiting.set(counters.num_waiting);
  metrics_.kv_cache_usage_perc.set(1.0 -
                                   static_cast<double>(counters.num_free_blocks) / num_blocks_);
  metrics_.num_preemptions.add(
      static_cast<double>(counters.num_preemptions - num_preemptions_counted_));
  num_preemptions_counted_ = counters.num_preemptions;
  raise(metrics_.prefix_cache_queries, counters.num_prefix_queries);
  raise(metrics_.prefix_cache_hits, counters.num_prefix_hits);
  metrics_.draft_up.set(draft_state_ == DraftState::kUp ? 1 : 0);
  if (draft_) {
    metrics_.draft_deadline_misses.add(
        static_cast<double>(draft_->num_deadline_misses() - num_misses_counted_));
    num_misses_counted_ = draft_->num_deadline_misses();
  }
  publish_traffic();
  std::lock_guard lock(status_mutex_);
  status_.num_running = counters.num_running;
  status_.num_waiting = counters.num_waiting;
  status_.draft = draft_state_;
  if (draft_) times_.draft_step_s = draft_->draft_step_s();
  last_round_end_ = Clock::now();
}

}  // namespace outrider
