// `bench sim`: what the runtime makes of dialled acceptance and costs. Simulated models, everything
// else real.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/base/virtual_clock.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/seeded_draws.h"
#include "runtime/commands/bench/sim/sim_grid.h"
#include "runtime/commands/bench/sim/sim_report.h"
#include "runtime/commands/bench/sim/sim_waves.h"
#include "runtime/ranks/job/job.h"

namespace outrider {
namespace {

// What the planner and the draft's deadline learned from the pair of models before has to be
// forgotten.
constexpr int32_t kWarmUpTokens = 48;

class SimMeasurement {
 public:
  SimMeasurement(const FrontEndContext& context, const SimOptions& options, const SimGrid& grid)
      : options_(options), grid_(grid), runner_(context, grid, options.temperature, seed()) {
    results_.synchronous.resize(grid.off ? grid.cells.size() : 0);
    results_.chain.resize(grid.chain ? grid.cells.size() : 0);
    results_.cache.resize(grid.cache ? grid.cells.size() : 0);
    results_.cases.resize(grid.cases.size());
    results_.sweep.resize(grid.requests.size());
  }

  int64_t num_steps() const {
    return static_cast<int64_t>(grid_.cells.size() + grid_.cases.size() + grid_.requests.size());
  }

  void once(Progress& progress) {
    ++num_passes_;
    for (size_t i = 0; i < grid_.cells.size(); ++i, progress.advance()) measure_cell(i);
    for (size_t i = 0; i < grid_.requests.size(); ++i, progress.advance()) {
      const SimWaveSpec spec = {grid_.many_workload_class,
                                kPlannedDraftLen,
                                AsyncDrafting::kCache,
                                lengths(grid_.requests[i], options_.sweep_tokens)};
      measure(spec, spec.max_tokens, &results_.sweep[i]);
    }
    for (size_t i = 0; i < grid_.cases.size(); ++i, progress.advance()) {
      const SimCase& one = grid_.cases[i];
      const int32_t length = one.num_requests > 1 ? options_.sweep_tokens : options_.case_tokens;
      const SimWaveSpec spec = {one.workload_class,
                                kPlannedDraftLen,
                                AsyncDrafting::kCache,
                                lengths(one.num_requests, length)};
      measure(spec, spec.max_tokens, &results_.cases[i]);
    }
  }

  const SimResults& results() const { return results_; }

 private:
  void measure_cell(size_t i) {
    const SimCell& cell = grid_.cells[i];
    const int32_t off_tokens = std::max(8, options_.max_tokens / 8);
    const auto add = [&](int32_t draft_len, AsyncDrafting mode, std::vector<SimFindings>& to) {
      if (to.empty()) return;
      measure({cell.workload_class, draft_len, mode, {options_.max_tokens}}, {off_tokens}, &to[i]);
    };
    add(cell.draft_len, AsyncDrafting::kOff, results_.synchronous);
    add(kPlannedDraftLen, AsyncDrafting::kChain, results_.chain);
    add(kPlannedDraftLen, AsyncDrafting::kCache, results_.cache);
  }

  // One wave without drafts, one to get used to it, one that counts.
  void measure(const SimWaveSpec& spec,
               const std::vector<int32_t>& off_tokens,
               SimFindings* findings) {
    SimWaveSpec off = spec;
    off.draft_len = 0;
    off.async_drafting = AsyncDrafting::kOff;
    off.max_tokens = off_tokens;
    const SimWave without = runner_.run(off);
    SimWaveSpec warm_up = spec;
    warm_up.max_tokens = lengths(spec.num_requests(), kWarmUpTokens);
    runner_.run(warm_up);
    findings->take_in(without, runner_.run(spec));
  }

  uint64_t seed() const { return static_cast<uint64_t>(options_.seed); }

  // Other ones in each pass.
  std::vector<int32_t> lengths(int32_t num_requests, int32_t length) const {
    return output_lengths(
        num_requests, length, options_.random_range_ratio, mix_seed(seed(), num_passes_));
  }

  const SimOptions& options_;
  const SimGrid& grid_;
  SimRunner runner_;
  uint64_t num_passes_ = 0;
  SimResults results_;
};

int measure(const BenchRun& run,
            const FrontEndContext& context,
            const SimOptions& options,
            const SimGrid& grid) {
  BenchReport report = run.new_report(context.topology);
  report.title = fmt::format("simulated models, target step {} ms, on {} target ranks",
                             options.step_ms,
                             context.engine.info().num_target_ranks);
  const std::vector<double> overshoot = sleep_overshoot_us();
  report.add_series("sleep of 1 ms: late by", "us", overshoot);
  SimMeasurement measurement(context, options, grid);
  Progress progress("simulated rounds", options.num_repeats * measurement.num_steps());
  for (int32_t repeat = 0; repeat < options.num_repeats; ++repeat) measurement.once(progress);
  const int32_t num_short = report_sim(grid, measurement.results(), &report);
  report.notes.push_back(fmt::format(
      "waves of several requests: {} tokens each on average, lengths drawn with ratio {} from "
      "seed {}, the same with and without drafts",
      options.sweep_tokens,
      options.random_range_ratio,
      options.seed));
  report.plot.title = "Simulated models through the running job";
  report.notes.push_back(fmt::format("a sleep of 1 ms is late by {:.0f} / {:.0f} us (median / p95)",
                                     median(overshoot),
                                     quantile(overshoot, 0.95)));
  run.finish(std::move(report));
  return num_short > 0 ? 1 : 0;
}

}  // namespace

int sim_bench(const CommandLine& line) {
  SimOptions options;
  BenchRun run("sim", line, sim_options(&options), kNoWords);
  for (const char* key : {"model", "speculative_config.model"}) {
    if (run.is_given(key))
      throw Error(fmt::format(
          "bench sim makes its own models: not {}, but target_keys and draft_keys", key));
  }
  const SimGrid grid = make_sim_grid(options, run.config());
  std::optional<VirtualClock> clock;
  if (options.clock == "virtual") clock.emplace();
  const auto front_end = [&](const FrontEndContext& context) {
    return measure(run, context, options, grid);
  };
  const std::chrono::microseconds latency(std::lround(options.message_us));
  return run_job(
      run.config(), line.launch, front_end, {.before_load = {}, .link = {.latency = latency}});
}

}  // namespace outrider
