// See job_parts.h.
#include "tests/simulation/job_parts.h"

#include <fmt/format.h>

namespace outrider::test {
namespace {

constexpr auto kLongestSilence = std::chrono::seconds(4);  // a goodbye is waited for 3 s
constexpr double kLongestWaitS = 0.050;
constexpr double kLookS = 0.001;  // between two looks of a wait
constexpr size_t kMostUnsentBytes = (1 << 20) + (64 << 10);

}  // namespace

void RoundLimits::see_time() const {
  if (JobClock::now() - last_progress_ > kLongestSilence)
    throw Error("I10: nothing has happened for 4 s of virtual time");
}

void RoundLimits::see_progress(int64_t num_rows_needed) {
  last_progress_ = JobClock::now();
  if (static_cast<int64_t>(witness_.num_rounds()) > 6 * num_rows_needed + 100)
    throw Error("I8: no end in sight");
}

// A wait may last as long as a block usually saves the target: a plain step for each accepted
// token.
void RoundLimits::see_waits(Coordinator& coordinator) {
  const ToyModel::Options& target = setting_.target;
  const int64_t step_ns =
      target.step_ns + target.jitter_ns + target.row_ns * setting_.planner.max_num_batched_tokens;
  const double saves_s =
      1e-9 * static_cast<double>(step_ns) * setting_.planner.num_speculative_tokens;
  const double longest_s = std::max(kLongestWaitS, saves_s) + kLookS;
  for (const RoundSample& sample : coordinator.take_round_samples()) {
    num_waits_ += sample.record.waited_s > 0 ? 1 : 0;
    if (sample.record.waited_s > longest_s)
      witness_.fault(
          fmt::format("a round waited {:.1f} ms for the draft, {:.1f} at most are allowed",
                      1e3 * sample.record.waited_s,
                      1e3 * longest_s));
  }
}

void RoundLimits::see_unsent(size_t num_bytes) {
  if (num_bytes > kMostUnsentBytes) witness_.fault(fmt::format("{} bytes are unsent", num_bytes));
}

void RoundLimits::see_model(const ToyModel& model) {
  if (!model.fault().empty()) witness_.fault(model.fault());
}

bool KnownLife::takes(const Bytes& bytes, Frame* frame) {
  if (!decode_frame(bytes, frame)) return false;
  if (frame->kind == FrameKind::kHello && frame->epoch > epoch_) epoch_ = frame->epoch;
  return frame->epoch == epoch_ && frame->kind == FrameKind::kReply;
}

Coordinator::Parts coordinator_parts(const Setting& setting,
                                     World& world,
                                     TargetRank& target,
                                     ServingMetrics& metrics) {
  EngineInfo info;
  info.max_model_len = setting.planner.max_model_len;
  info.vocab_size = ToyLaw::kVocabSize;
  info.num_target_ranks = setting.num_targets;
  return {.world = world,
          .layout = {.num_targets = setting.num_targets, .has_draft = true},
          .target = target,
          .planner = setting.planner,
          .info = info,
          .metrics = metrics,
          .max_num_queued_reqs = setting.clients.num_requests,
          .async_drafting = setting.async_drafting,
          .epoch = kFirstDraftEpoch,
          .chooses_draft_len = setting.chooses_draft_len,
          .checks = {.books = true, .poison = setting.poisons}};
}

bool run_coordinator_loop(Coordinator& coordinator, Witness& witness) {
  try {
    coordinator.loop();
    return true;
  } catch (const std::exception& error) {
    witness.fault(fmt::format("the job ended: {}", error.what()));
    coordinator.fail(error.what());
    return false;
  }
}

void check_books(const ServingMetrics& metrics, Witness& witness) {
  if (metrics.kv_accounting_faults.value() > 0) witness.fault("I6: the KV books are wrong");
  if (metrics.kv_cache_usage_perc.value() > 0) witness.fault("I6: KV blocks are held at the end");
  if (metrics.num_requests_running.value() + metrics.num_requests_waiting.value() > 0)
    witness.fault("sequences are left at the end");
}

void add_counts(const Witness& witness, const Clients& clients, SimulationResult* result) {
  result->add(clients.counts());
  result->faults = witness.faults();
  result->digest = witness.digest();
  result->num_rounds = witness.num_rounds();
}

void SimulationResult::add(const SimulationResult& other) {
  faults.insert(faults.end(), other.faults.begin(), other.faults.end());
  digest = mix_seed(digest, other.digest);
  seconds += other.seconds;
  using Count = uint64_t SimulationResult::*;
  for (const Count count : {&SimulationResult::num_rounds,
                            &SimulationResult::num_tokens,
                            &SimulationResult::num_compared,
                            &SimulationResult::num_drafts_judged,
                            &SimulationResult::num_accepted,
                            &SimulationResult::num_link_faults,
                            &SimulationResult::num_lies,
                            &SimulationResult::num_lives,
                            &SimulationResult::num_preempted,
                            &SimulationResult::num_cancelled,
                            &SimulationResult::num_failed,
                            &SimulationResult::num_waits,
                            &SimulationResult::num_reused,
                            &SimulationResult::num_bonus_drafts,
                            &SimulationResult::num_hits})
    this->*count += other.*count;
}

}  // namespace outrider::test
