// See sim_waves.h.
#include "runtime/commands/bench/sim/sim_waves.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "models/simulated/simulated.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

void count_acceptance(const SpeculationStats& stats, SimWave* wave) {
  for (size_t i = 0; i < stats.drafted_per_position.size(); ++i) {
    const int32_t reached = i == 0 ? stats.num_spec_rounds : stats.accepted_per_position[i - 1];
    wave->examined += std::min(reached, stats.drafted_per_position[i]);
    wave->accepted += stats.accepted_per_position[i];
  }
}

// The job's own counters: a wave has what they grew by.
void add_counters(const ServingMetrics& metrics, double sign, SimWave* wave) {
  wave->bubble_s += sign * metrics.target_wait_seconds.value();
  wave->num_lookups += sign * metrics.speculation_cache_queries.value();
  wave->num_hits += sign * metrics.speculation_cache_hits.value();
}

}  // namespace

SimWave SimRunner::run(const SimWaveSpec& spec) {
  SimWave wave;
  add_counters(context_.metrics, -1, &wave);
  context_.engine.take_round_samples();
  std::vector<std::shared_ptr<ResultStream>> streams;
  for (int32_t i = 0; i < spec.num_requests(); ++i) streams.push_back(ask(spec, i));
  const Clock::time_point begin = follow(*streams[0], spec, &wave);
  for (size_t i = 1; i < streams.size(); ++i) {
    const BenchAnswer answer = collect_bench_answer(*streams[i]);
    wave.num_tokens += static_cast<int64_t>(answer.tokens.size()) - 1;
  }
  wave.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  add_counters(context_.metrics, 1, &wave);
  record_samples(spec, &wave);
  return wave;
}

void SimRunner::record_samples(const SimWaveSpec& spec, SimWave* wave) {
  std::optional<Clock::time_point> full_since;  // the end of a round with all requests
  for (const auto& [round, end] : context_.engine.take_round_samples()) {
    if (round.num_sequences < spec.num_requests()) {
      full_since.reset();
      continue;
    }
    const double busy_s = round.round_s - round.waited_s;
    wave->round_overheads_us.push_back(1e6 *
                                       (busy_s - step_s(spec.workload_class, round.load.num_rows)));
    if (full_since) {
      const double seconds = std::chrono::duration<double>(end - *full_since).count();
      if (wave->num_full_rounds % kGroupRounds == 0) wave->groups.emplace_back();
      RoundGroup& group = wave->groups.back();
      group.seconds += seconds;
      group.waited_s += std::max(0.0, seconds - busy_s);
      group.num_tokens += round.num_tokens;
      wave->full_seconds += seconds;
      wave->num_full_tokens += round.num_tokens;
      ++wave->num_full_rounds;
    }
    full_since = end;
  }
}

// What the target's step of so many rows was to take: steps grow evenly with rows.
double SimRunner::step_s(int32_t workload_class, int32_t num_rows) const {
  const double one_ms = sim_step_ms(grid_.target, workload_class, 1, 0);
  const double row_ms = sim_step_ms(grid_.target, workload_class, 2, 0) - one_ms;
  return 1e-3 * (one_ms + (num_rows - 1) * row_ms);
}

std::shared_ptr<ResultStream> SimRunner::ask(const SimWaveSpec& spec, int32_t index) {
  Request request;
  request.id = context_.engine.next_request_id();
  const auto word = static_cast<int32_t>((request.id * 7) % 40);
  request.prompt = {index % 200 + 20,
                    kFirstSimulatedWord + spec.workload_class + word * grid_.num_workload_classes};
  request.params.max_tokens = spec.max_tokens[static_cast<size_t>(index)];
  request.params.temperature = static_cast<float>(temperature_);
  request.params.max_draft_len = spec.draft_len;
  request.params.fixed_draft_len = spec.draft_len > 0;
  request.params.async_drafting = spec.async_drafting;
  request.params.noise_seed = mix_seed(0x51u + seed_, request.id);
  return submit_bench_request(context_, std::move(request));
}

// Events come once a round, so the time between two is a round's. Returns when the first came.
SimRunner::Clock::time_point SimRunner::follow(ResultStream& stream,
                                               const SimWaveSpec& spec,
                                               SimWave* wave) {
  Clock::time_point first{};
  Clock::time_point last{};
  int32_t num_drafted_before = 0;
  int32_t position = 2;
  while (true) {
    auto event = stream.wait_next(std::chrono::milliseconds(200));
    if (wait_stop_signal(std::chrono::milliseconds(0))) throw Error("stopped by a signal");
    if (!event) continue;
    const auto now = Clock::now();
    if (!event->error.empty()) throw Error(event->error);
    const auto num_tokens = static_cast<int32_t>(event->tokens.size());
    const int32_t draft_len = event->stats.num_draft_tokens - num_drafted_before;
    if (first == Clock::time_point{}) {
      first = now;
    } else if (num_tokens > 0) {
      const double round_ms = std::chrono::duration<double, std::milli>(now - last).count();
      if (spec.num_requests() == 1) record_round(spec, draft_len, position, round_ms, wave);
      ++wave->num_rounds;
      wave->num_tokens += num_tokens;
      wave->num_round_tokens += num_tokens;
    }
    last = now;
    position += num_tokens;
    num_drafted_before = event->stats.num_draft_tokens;
    if (event->finish_reason == FinishReason::kNone) continue;
    count_acceptance(event->stats, wave);
    return first;
  }
}

// The models' part of a round of a single request: the target's step, and the draft's where nobody
// drafts asynchronously.
void SimRunner::record_round(const SimWaveSpec& spec,
                             int32_t draft_len,
                             int32_t position,
                             double round_ms,
                             SimWave* wave) const {
  double models_ms = sim_step_ms(grid_.target, spec.workload_class, draft_len + 1, position);
  if (spec.async_drafting == AsyncDrafting::kOff)
    models_ms += draft_len * sim_step_ms(grid_.draft, spec.workload_class, 1, position);
  wave->overhead_us.push_back(1e3 * (round_ms - models_ms));
}

std::vector<double> sleep_overshoot_us() {
  std::vector<double> samples;
  StepClock& clock = system_step_clock();
  for (int i = 0; i < 300; ++i) {
    const int64_t until = clock.now_ns() + 1'000'000;
    clock.sleep_until_ns(until);
    samples.push_back(static_cast<double>(clock.now_ns() - until) / 1e3);
  }
  return samples;
}

}  // namespace outrider
