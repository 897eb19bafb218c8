// See coordinator.h.
#include "runtime/ranks/coordinator/coordinator.h"

#include "runtime/base/log.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"
#include "runtime/ranks/target/step_probe.h"
#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

using Clock = JobClock;

constexpr auto kIdleCheckInterval = std::chrono::milliseconds(100);
constexpr size_t kMostSamples = 8192;
constexpr size_t kMostGrammars = 16;  // announced between two plans

}  // namespace

Coordinator::Coordinator(const Parts& parts)
    : parts_(parts),
      planner_(parts.planner),
      book_check_(
          parts.checks, parts.metrics.kv_accounting_faults, [this] { return planner_.fault(); }),
      account_(parts.metrics),
      draft_({.world = parts.world,
              .layout = parts.layout,
              .planner = planner_,
              .config = parts.planner,
              .account = account_,
              .epoch = parts.epoch,
              .server = parts.draft_server,
              .patience_s = parts.draft_patience_s,
              .drafts_async = parts.async_drafting != AsyncDrafting::kOff,
              .chooses_draft_len = parts.chooses_draft_len}) {
  status_.ready = true;
  publish_status();
}

AdmissionResult Coordinator::submit(Request request) {
  if (request.params.verify_mode == VerifyMode::kAuto)
    request.params.verify_mode = parts_.verify_mode;
  if (request.params.async_drafting == AsyncDrafting::kAuto || parts_.draft_translates)
    request.params.async_drafting = parts_.async_drafting;
  if (std::string reason = planner_.refusal(request); !reason.empty()) {
    return {Admission::kRefused, std::move(reason)};
  }
  std::lock_guard lock(inbox_mutex_);
  if (!failure_.empty()) return {Admission::kShuttingDown, failure_};
  if (stopping_) return {Admission::kShuttingDown, "the server is shutting down"};
  const int32_t num_waiting = num_taken_waiting_ + static_cast<int32_t>(inbox_.requests.size());
  // A call with many requests leaves half of the queue to others.
  const int32_t most =
      request.is_further ? std::max(1, parts_.max_num_queued_reqs / 2) : parts_.max_num_queued_reqs;
  if (num_waiting >= most) {
    return {Admission::kQueueFull,
            fmt::format("{} requests are waiting already, which is the most this server queues",
                        num_waiting)};
  }
  if (streams_.size() == streams_.capacity())
    std::erase_if(streams_, [](const auto& stream) { return stream.expired(); });
  if (request.stream) streams_.push_back(request.stream);
  inbox_.requests.push_back(std::move(request));
  inbox_filled_.notify_one();
  return {};
}

void Coordinator::cancel(uint64_t request_id) {
  std::lock_guard lock(inbox_mutex_);
  inbox_.cancels.push_back(request_id);
  inbox_filled_.notify_one();
}

// A plan carries them, so what is announced while nothing runs comes with the request itself.
void Coordinator::announce(const std::shared_ptr<const Grammar>& grammar) {
  std::lock_guard lock(inbox_mutex_);
  if (parts_.layout.num_targets > 1 && inbox_.grammars.size() < kMostGrammars)
    inbox_.grammars.push_back(grammar);
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

SpeedupTotals Coordinator::speedup_totals() const {
  std::lock_guard lock(status_mutex_);
  return speedup_totals_;
}

std::vector<RoundSample> Coordinator::take_round_samples() {
  std::lock_guard lock(status_mutex_);
  return std::exchange(samples_, {});
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
  if (draft_.wants_probes()) measure_steps();
  while (true) {
    take_inbox();
    bool stopping;
    bool now;
    {
      std::lock_guard lock(inbox_mutex_);
      stopping = stopping_ && inbox_.requests.empty();
      now = stop_now_;
    }
    if (now || planner_.idle()) deliver_last_round();
    if (now) planner_.fail_all("the server was stopped before this request was done");
    if (planner_.idle()) book_check_.when_idle();
    if (planner_.idle() && stopping) break;
    if (planner_.idle() || !run_round()) {
      deliver_last_round();
      publish_status();
      wait_for_work();
    }
  }
  publish_status();
  shut_down();
}

void Coordinator::measure_steps() {
  const auto run_step = [&](int32_t num_rows) {
    RoundPlan plan;
    plan.num_probe_rows = num_rows;
    const auto begin = Clock::now();
    broadcast(plan);
    parts_.target.probe(num_rows);
    check_agreement(parts_.world, parts_.layout, plan.round, digest(plan.round, {}));
    return seconds_since(begin);
  };
  const int32_t most_rows = most_probe_rows(parts_.target.model().options());
  if (most_rows == 0) return;
  for (const StepProbe& probe : probe_steps(most_rows, run_step)) {
    draft_.record_probe(probe);
    log_debug("a step of {} rows takes {:.3f} ms", probe.load.num_rows, 1e3 * probe.seconds);
  }
}

void Coordinator::take_inbox() {
  Inbox inbox;
  {
    std::lock_guard lock(inbox_mutex_);
    std::swap(inbox, inbox_);
    num_taken_waiting_ += static_cast<int32_t>(inbox.requests.size());
  }
  if (!inbox.requests.empty()) draft_.record_arrivals();
  for (Request& request : inbox.requests) planner_.add(std::move(request));
  for (auto& grammar : inbox.grammars) {
    if (grammars_.size() < kMostGrammars) grammars_.push_back(std::move(grammar));
  }
  if (!inbox.cancels.empty()) deliver_last_round();
  for (uint64_t id : inbox.cancels) planner_.cancel(id);
  if (!inbox.cancels.empty()) record_waiting();
}

// After whatever lets sequences in, back to wait, or end.
void Coordinator::record_waiting() {
  const int32_t num_waiting = planner_.num_waiting();
  std::lock_guard lock(inbox_mutex_);
  num_taken_waiting_ = num_waiting;
}

void Coordinator::deliver_decided() {
  if (!last_round_) return;
  for (PendingResult& result : last_round_->results) std::move(result).deliver();
  planner_.recycle(std::move(last_round_->plan));
  last_round_.reset();
}

// What the planner has is the round's thread's: the streams are told without it.
void Coordinator::fail(const std::string& reason) {
  const std::string failure = fmt::format("the job has ended: {}", reason);
  std::vector<std::weak_ptr<ResultStream>> streams;
  {
    std::lock_guard lock(inbox_mutex_);
    failure_ = failure;
    std::swap(streams, streams_);
  }
  for (const auto& weak : streams) {
    const std::shared_ptr<ResultStream> stream = weak.lock();
    if (!stream) continue;
    ResultEvent event;
    event.finish_reason = FinishReason::kAborted;
    event.error = failure;
    stream->push(std::move(event));
  }
  std::lock_guard lock(status_mutex_);
  status_.ready = false;
  status_.failed = true;
}

void Coordinator::wait_for_work() {
  {
    const TraceSpan span(TraceKind::kIdle);
    std::unique_lock lock(inbox_mutex_);
    inbox_filled_.wait_for(lock, kIdleCheckInterval, [&] {
      return !inbox_.requests.empty() || !inbox_.cancels.empty() || stopping_;
    });
  }
  parts_.world.check_alive(parts_.layout.num_targets);
  draft_.record_idle();
}

bool Coordinator::run_round() {
  TraceSpan span(TraceKind::kRound);
  RoundClock clock;
  clock.waited_s = wait_for_draft();
  std::optional<RoundPlan> next = plan_round();
  if (!next) return false;
  span.set({static_cast<int64_t>(round_), std::ssize(next->sequences)});

  clock.start_step();
  broadcast(*next);
  parts_.target.begin(std::move(*next));  // a device computes from here on
  const RoundPlan& plan = parts_.target.plan();
  if (plan.candidates_follow) post_to_targets(encode_candidates(plan));
  draft_.tell_begun();
  deliver_last_round();
  parts_.target.prepare();
  while (const auto until = parts_.target.advance()) {
    if (!draft_.listen_until(*until)) break;
  }
  if (parts_.target.awaits_bonus_drafts()) parts_.target.add_late_tokens(late_draft_tokens(plan));

  RoundDecision decision = parts_.target.finish();
  agree(decision);
  apply(std::move(decision), clock);
  return true;
}

// What the round decided becomes the sequences' state; streams hear of it beside the next step.
void Coordinator::apply(RoundDecision decision, const RoundClock& clock) {
  FinishedRound& last = last_round_.emplace(FinishedRound{});
  last.step_begin_ns = clock.step_begin_ns;
  last.step_end_ns = trace_now_ns();
  last.record = record_of(parts_.target.plan(), decision);
  last.record.waited_s = clock.waited_s;
  last.record.step_s = seconds_since(clock.step_begin);
  draft_.catch_up();  // what was prepared for this outcome must be here to be found
  last.results =
      traced(TraceKind::kApply, [&] { return planner_.decide(parts_.target.plan(), decision); });
  draft_.settle(last.record);
  book_check_.after_round();
  last.plan = parts_.target.take_plan();
  last.decision = std::move(decision);
  last.end = Clock::now();
  last.record.round_s = seconds_since(clock.begin);
}

// A long wait is used for what else would be done beside a step, also one that was expected to be
// short. Otherwise two waits in a row hold up a stream.
double Coordinator::wait_for_draft() {
  const double short_s = 1e-6 * pacing.deliver_before_wait_us;
  const auto begin = Clock::now();
  if (draft_.expected_wait_s() > short_s || draft_.wait_for_blocks(short_s)) {
    deliver_last_round();
    draft_.wait_for_blocks();
  }
  parts_.metrics.round_draft_wait_seconds.observe(seconds_since(begin));
  return draft_.waited_s();
}

std::optional<RoundPlan> Coordinator::plan_round() {
  RoundPlan plan = traced(TraceKind::kPlan, [&] { return planner_.plan(); });
  record_waiting();
  if (plan.sequences.empty() && plan.ends.empty() && plan.starts.empty()) {
    draft_.tell_begun();  // nothing has, but something may be over
    return std::nullopt;
  }
  plan.round = ++round_;
  parts_.world.note_round(round_);
  plan.grammars = std::exchange(grammars_, {});
  plan.candidates_follow = parts_.layout.num_targets > 1 && has_candidates(plan);
  return plan;
}

void Coordinator::agree(const RoundDecision& decision) {
  const TraceSpan span(TraceKind::kAgreement);
  check_agreement(parts_.world, parts_.layout, round_, digest(round_, decision));
}

// Counts the round that is over, then wakes whoever waits for its results: beside the next one's
// step, where there is one.
void Coordinator::deliver_last_round() {
  if (!last_round_) return;
  const FinishedRound& round = *last_round_;
  account_.record_round(round.plan, round.decision, round.record);
  trace_verifications(round.plan, round.decision, round.step_begin_ns, round.step_end_ns);
  record_times(round);
  publish_status();
  deliver_decided();
}

void Coordinator::broadcast(const RoundPlan& plan) {
  if (parts_.layout.num_targets == 1) return;
  const TraceSpan span(TraceKind::kBroadcast);
  post_to_targets(encode(plan));
}

// While the ranks computed, the draft has gone on: what follows the tokens that they verify. Where
// the end of the step is foreseen nobody waits for this message behind it, and what comes in the
// moments between is too late.
LateDraftTokens Coordinator::late_draft_tokens(const RoundPlan& plan) {
  const TraceSpan span(TraceKind::kBonusDrafts);
  draft_.catch_up();
  LateDraftTokens late_tokens{plan.round, planner_.late_draft_tokens(plan)};
  if (parts_.layout.num_targets > 1) post_to_targets(encode(late_tokens));
  return late_tokens;
}

void Coordinator::post_to_targets(const Bytes& bytes) {
  post_down(parts_.world, parts_.layout, bytes);
  num_plan_bytes_ += bytes.size() * static_cast<size_t>(parts_.layout.num_targets - 1);
}

void Coordinator::shut_down() {
  // mpirun asks its ranks to stop when one has died: that is no end in order.
  parts_.world.check_alive(parts_.layout.num_targets);
  RoundPlan plan;
  plan.round = ++round_;
  plan.shutdown = true;
  broadcast(plan);
  if (!draft_.shut_down()) parts_.world.end_unresponsive(parts_.layout.draft_rank());
}

void Coordinator::record_times(const FinishedRound& round) {
  const RoundRecord& record = round.record;
  const bool any_draft = record.num_drafts > 0;
  std::lock_guard lock(status_mutex_);
  if (samples_.size() == kMostSamples)
    samples_.erase(samples_.begin(), samples_.begin() + kMostSamples / 2);
  samples_.push_back({record, round.end});
  times_.waited_total_s += record.waited_s;
  if (record.reads_prompt) return;
  update_average(any_draft ? &times_.verify_round_s : &times_.plain_round_s, record.step_s);
  (any_draft ? times_.verify_total_s : times_.plain_total_s) += record.step_s;
  ++(any_draft ? times_.num_verify_rounds : times_.num_plain_rounds);
}

void Coordinator::publish_traffic() {
  ServingMetrics& metrics = parts_.metrics;
  metrics.link_bytes_plan.set_total(num_plan_bytes_);
  metrics.link_bytes_partial_sums.set_total(parts_.target.model().sum_traffic().num_bytes);
  metrics.link_bytes_sampling.set_total(parts_.target.traffic().num_bytes);
  metrics.sampling_collectives.set_total(parts_.target.traffic().num_collectives);
  if (draft_.client() == nullptr) return;
  metrics.link_bytes_to_draft.set_total(draft_.client()->num_sent_bytes());
  metrics.link_bytes_from_draft.set_total(draft_.client()->num_received_bytes());
  metrics.draft_deadline_misses.set_total(draft_.client()->num_deadline_misses());
  metrics.draft_dropped_frames.set_total(draft_.client()->num_dropped_frames());
  metrics.draft_restarts.set_total(draft_.client()->num_lives());
  metrics.draft_standbys.set(static_cast<double>(draft_.num_standing_by()));
}

void Coordinator::publish_status() {
  ServingMetrics& metrics = parts_.metrics;
  const PlannerCounters counters = planner_.counters();
  metrics.num_requests_running.set(counters.num_running);
  metrics.num_requests_waiting.set(counters.num_waiting);
  metrics.num_requests_waiting_for_capacity.set(counters.num_waiting);
  const double free_blocks = counters.num_free_blocks;
  metrics.kv_cache_usage_perc.set(1.0 - free_blocks / parts_.planner.num_blocks);
  metrics.num_preemptions.add(
      static_cast<double>(counters.num_preemptions - num_preemptions_counted_));
  num_preemptions_counted_ = counters.num_preemptions;
  metrics.prefix_cache_queries.set_total(counters.num_prefix_queries);
  metrics.prefix_cache_hits.set_total(counters.num_prefix_hits);
  metrics.draft_up.set(draft_.state() == DraftState::kUp ? 1 : 0);
  publish_traffic();
  account_.publish(planner_.draft_counters());
  std::lock_guard lock(status_mutex_);
  speedup_totals_ = account_.totals();
  status_.num_running = counters.num_running;
  status_.num_waiting = counters.num_waiting;
  status_.draft = draft_.state();
  times_.draft_step_s = draft_.draft_step_s();
  last_round_end_ = Clock::now();
}

}  // namespace outrider
