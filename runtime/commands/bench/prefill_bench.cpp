// bench prefill: prompt tokens per second by prompt length, in the chunks a server would make and
// in one step. On every target rank; rank 0 reports.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/step_runner.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr std::array<int32_t, 3> kUsualLengths = {128, 512, 2048};

struct PrefillOptions {
  std::vector<int32_t> lengths;  // empty = kUsualLengths, as far as the model goes
  int32_t num_repeats = 5;
};

std::vector<Option> prefill_options(PrefillOptions* options) {
  return {
      integer_list_option("lengths",
                          &options->lengths,
                          1,
                          1 << 20,
                          "prompt lengths; default: 128,512,2048, as far as the model goes"),
      integer_option("repeat",
                     &options->num_repeats,
                     1,
                     100000,
                     "turns; in each every length is timed once in chunks and once whole"),
  };
}

struct Measured {
  std::vector<double> chunked_ms;
  std::vector<double> whole_ms;
};

double chunked_ms(StepRunner& runner, int32_t length, int32_t chunk) {
  double total_ms = 0;
  for (int32_t at = 0; at < length; at += chunk)
    total_ms += runner.step_ms(at, std::min(chunk, length - at), StepLogits::kLastRow);
  return total_ms;
}

struct Measurements {
  std::vector<Measured> lengths;
  std::vector<double> peak_gflops;
};

Measurements measure_lengths(StepRunner& runner, const PrefillOptions& options, int32_t chunk) {
  Measurements found;
  std::vector<Measured>& measured = found.lengths;
  measured.resize(options.lengths.size());
  std::vector<std::function<void()>> variants;
  if (runner.has_ceilings())
    variants.emplace_back([&] { found.peak_gflops.push_back(runner.peak_gflops()); });
  for (size_t i = 0; i < options.lengths.size(); ++i) {
    const int32_t length = options.lengths[i];
    variants.emplace_back(
        [&, i, length] { measured[i].chunked_ms.push_back(chunked_ms(runner, length, chunk)); });
    variants.emplace_back([&, i, length] {
      measured[i].whole_ms.push_back(runner.step_ms(0, length, StepLogits::kLastRow));
    });
  }
  runner.step_ms(0, std::min(chunk, options.lengths.front()), StepLogits::kLastRow);  // warm-up
  std::optional<Progress> progress;
  if (runner.reports()) progress.emplace("prefill", options.num_repeats);
  run_in_turns(options.num_repeats, variants, progress ? &*progress : nullptr);
  return found;
}

void fill_report(const TargetContext& context,
                 const PrefillOptions& options,
                 const Measurements& found,
                 BenchReport* report) {
  BenchTable table{
      "", {"tokens", "chunked, tokens/s", "in one step, tokens/s", "GFLOP/s", "of peak"}, {}};
  PlotSeries lines[] = {{.name = "chunked", .mark = PlotMark::kDots, .color = 0},
                        {.name = "in one step", .mark = PlotMark::kRings, .color = 1}};
  double peak = 0;  // unknown
  if (!found.peak_gflops.empty())
    peak = report->add_samples("multipliers' peak", "GFLOP/s", found.peak_gflops).value;
  for (size_t i = 0; i < options.lengths.size(); ++i) {
    const Measured& measured = found.lengths[i];
    const int32_t length = options.lengths[i];
    const BenchX x = {"tokens", static_cast<double>(length)};
    std::vector<Interval> rates;
    for (const bool whole : {false, true}) {
      const std::string name = whole ? "in one step" : "chunked";
      std::vector<double> per_s;
      for (double ms : whole ? measured.whole_ms : measured.chunked_ms)
        per_s.push_back(1e3 * length / ms);
      rates.push_back(report->add_samples(name, "tokens/s", per_s, x));
      lines[whole ? 1 : 0].points.push_back(plot_point(x.value, rates.back()));
    }
    const double operations =
        step_operations(context.loaded.model->config(), 0, length, StepLogits::kLastRow);
    const double gflops = report->add_figure(
        "operations, in one step", "GFLOP/s", operations / median(measured.whole_ms) / 1e6, x);
    table.rows.push_back({std::to_string(length),
                          interval_text(rates[0], 1),
                          interval_text(rates[1], 1),
                          fmt::format("{:.0f}", gflops),
                          peak > 0 ? fmt::format("{:.0f} %", 100 * gflops / peak) : "-"});
  }
  report->tables.push_back(std::move(table));
  if (peak > 0) {
    report->tables.push_back(
        {"", {"", ""}, {{"multipliers in turns with it, GFLOP/s", fmt::format("{:.0f}", peak)}}});
  }
  report->plot = {.title = report->title,
                  .panels = {{"prefill", "prompt tokens", "tokens/s", {lines[0], lines[1]}}}};
}

int measure(const BenchRun& run,
            const TargetContext& context,
            const PrefillOptions& options,
            int32_t chunk) {
  StepRunner runner(context, options.lengths.back());
  std::optional<BenchReport> report;
  if (runner.reports()) report = run.new_report(context.topology);
  const Measurements found = measure_lengths(runner, options, chunk);
  if (!report) return 0;
  report->title = fmt::format("{}, chunks of {}", describe_target(context), chunk);
  fill_report(context, options, found, &*report);
  run.finish(std::move(*report));
  return 0;
}

std::vector<int32_t> usual_lengths(const RunConfig& config) {
  int32_t most = config.max_model_len;
  if (most <= 0) most = model_config_of(config.model, Role::kTarget).max_positions;
  std::vector<int32_t> lengths;
  for (const int32_t length : kUsualLengths) lengths.push_back(std::min(length, most));
  return lengths;
}

}  // namespace

int prefill_bench(const CommandLine& line) {
  PrefillOptions options;
  BenchRun run("prefill", line, prefill_options(&options));
  if (options.lengths.empty()) options.lengths = usual_lengths(run.config());
  std::sort(options.lengths.begin(), options.lengths.end());
  options.lengths.erase(std::unique(options.lengths.begin(), options.lengths.end()),
                        options.lengths.end());
  RunConfig& config = run.config();
  const int32_t chunk = config.max_num_batched_tokens;
  const int32_t most = options.lengths.back();
  config.max_num_seqs = 1;
  config.max_num_batched_tokens = std::max(chunk, most);
  if (!run.is_given("max_model_len")) config.max_model_len = most;
  if (config.max_model_len < most) {
    throw Error(fmt::format(
        "max_model_len {} is less than the longest prompt, {}", config.max_model_len, most));
  }
  return run_on_targets(config, line.launch, [&](const TargetContext& context) {
    return measure(run, context, options, chunk);
  });
}

}  // namespace outrider
