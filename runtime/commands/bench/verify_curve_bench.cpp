// bench verify-curve: what a step costs by its rows, from one row (plain decoding) to a
// verification of a long draft, and how near the one row comes to a plain read of the weights. On
// every target rank; rank 0 reports.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/step_runner.h"

namespace outrider {
namespace {

struct CurveOptions {
  std::vector<int32_t> rows = {1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32};
  int32_t context = 64;  // positions before the step
  int32_t num_repeats = 20;
};

std::vector<Option> curve_options(CurveOptions* options) {
  return {
      integer_list_option("rows",
                          &options->rows,
                          1,
                          512,
                          "rows of the steps, as in 1,2,5; 1 is "
                          "always measured"),
      integer_option("context", &options->context, 0, 1 << 20, "positions before the step"),
      integer_option("repeat",
                     &options->num_repeats,
                     1,
                     100000,
                     "turns; in each every step and a plain read are timed once"),
  };
}

struct Measured {
  std::vector<double> read_ms;
  std::vector<double> peak_gflops;
  std::vector<std::vector<double>> step_ms;  // as rows
  std::vector<std::vector<double>> exchange_ms;
  std::vector<double> exchange_bytes;  // of a step
  std::vector<double> step_bytes;      // of weights

  explicit Measured(size_t num_rows)
      : step_ms(num_rows), exchange_ms(num_rows), exchange_bytes(num_rows), step_bytes(num_rows) {}
};

Measured measure_steps(StepRunner& runner, const CurveOptions& options) {
  Measured measured(options.rows.size());
  std::vector<std::function<void()>> variants;
  if (runner.has_ceilings()) {
    variants.emplace_back([&] { measured.read_ms.push_back(runner.read_ms()); });
    variants.emplace_back([&] { measured.peak_gflops.push_back(runner.peak_gflops()); });
  }
  for (size_t i = 0; i < options.rows.size(); ++i) {
    variants.emplace_back([&, i] {
      measured.step_ms[i].push_back(
          runner.step_ms(options.context, options.rows[i], StepLogits::kAllRows));
      measured.exchange_ms[i].push_back(runner.exchange_ms());
      measured.exchange_bytes[i] = runner.exchange_bytes();
      measured.step_bytes[i] = runner.step_bytes();
    });
  }
  runner.fill(options.context);
  for (const auto& variant : variants) variant();  // warm-up
  measured = Measured(options.rows.size());
  std::optional<Progress> progress;
  if (runner.reports()) progress.emplace("verify curve", options.num_repeats);
  run_in_turns(options.num_repeats, variants, progress ? &*progress : nullptr);
  return measured;
}

// Share of the plain read's bandwidth that the one row reaches, turn by turn.
std::vector<double> shares_of_read(const StepRunner& runner, const Measured& measured) {
  std::vector<double> shares;
  const double bytes_ratio = runner.bytes_per_step() / runner.bytes_per_read();
  for (double ratio : pair_ratios(measured.read_ms, measured.step_ms[0]))
    shares.push_back(bytes_ratio * ratio);
  return shares;
}

void fill_report(const TargetContext& context,
                 const CurveOptions& options,
                 const StepRunner& runner,
                 const Measured& measured,
                 BenchReport* report) {
  const bool has_ceilings = runner.has_ceilings();
  BenchTable table{"", {"rows", "step, ms", "x one row", "tokens/s", "GFLOP/s"}, {}};
  table.columns.emplace_back(has_ceilings ? "of peak" : "weights, GB/s");
  PlotSeries times{.name = "measured", .mark = PlotMark::kDots, .color = 0};
  PlotSeries ratios{.name = "measured", .mark = PlotMark::kDots, .color = 0};
  PlotSeries linear{.name = "as many steps of one row", .mark = PlotMark::kDashedLine, .color = 7};
  double peak = 0;
  if (has_ceilings)
    peak = report->add_samples("multipliers' peak", "GFLOP/s", measured.peak_gflops).value;
  for (size_t i = 0; i < options.rows.size(); ++i) {
    const int32_t rows = options.rows[i];
    const BenchX x = {"rows", static_cast<double>(rows)};
    const Interval step = report->add_samples("step", "ms", measured.step_ms[i], x);
    const Interval ratio = report->add_figure(
        "step / step of one row", "", bootstrap_ratio(measured.step_ms[i], measured.step_ms[0]), x);
    const double operations = step_operations(
        context.loaded.model->config(), options.context, rows, StepLogits::kAllRows);
    const double gflops =
        report->add_figure("operations", "GFLOP/s", operations / step.value / 1e6, x);
    table.rows.push_back({std::to_string(rows),
                          interval_text(step, 2),
                          interval_text(ratio, 3),
                          fmt::format("{:.1f}", 1e3 * rows / step.value),
                          fmt::format("{:.0f}", gflops),
                          has_ceilings
                              ? fmt::format("{:.0f} %", 100 * gflops / peak)
                              : fmt::format("{:.0f}", runner.bytes_per_step() / step.value / 1e6)});
    times.points.push_back(plot_point(x.value, step));
    ratios.points.push_back(plot_point(x.value, ratio));
    if (rows <= 4) linear.points.push_back({x.value, x.value});
  }
  report->tables.push_back(std::move(table));
  report->plot = {
      .title = report->title,
      .panels = {{"step time", "rows of the step", "ms", {times}},
                 {"step time / that of one row", "rows of the step", "", {ratios, linear}}}};
  const double step_rate = runner.bytes_per_step() / median(measured.step_ms[0]) / 1e6;
  report->add_figure("weights read by one row", "GB/s", step_rate);
  if (!has_ceilings) return;
  report->add_series("plain read", "ms", measured.read_ms);
  const Interval share = report->add_figure("share of the plain read's bandwidth",
                                            "",
                                            bootstrap_median(shares_of_read(runner, measured)));
  const double read_rate = runner.bytes_per_read() / median(measured.read_ms) / 1e6;
  report->add_figure("plain read", "GB/s", read_rate);
  report->tables.push_back(
      {"",
       {"", ""},
       {{"multipliers in turns with it, GFLOP/s", fmt::format("{:.0f}", peak)},
        {"weights of rank 0, MB", fmt::format("{:.1f}", runner.bytes_per_step() / 1e6)},
        {"read by a step of one row, GB/s", fmt::format("{:.2f}", step_rate)},
        {"plain read in turns with it, GB/s", fmt::format("{:.2f}", read_rate)},
        {"share of it", interval_text(share, 3)}}});
}

// What tensor parallelism costs; empty on one rank.
void add_exchange(const CurveOptions& options, const Measured& measured, BenchReport* report) {
  if (measured.exchange_bytes[0] == 0) return;
  BenchTable table{"sums over the ranks, rank 0", {"rows", "ms", "share of the step", "kB"}, {}};
  for (size_t i = 0; i < options.rows.size(); ++i) {
    const BenchX x = {"rows", static_cast<double>(options.rows[i])};
    const Interval exchange = report->add_samples("exchange", "ms", measured.exchange_ms[i], x);
    report->add_series("partial sums", "bytes", {measured.exchange_bytes[i]}, x);
    const Interval share = report->add_figure(
        "exchange / step", "", bootstrap_ratio(measured.exchange_ms[i], measured.step_ms[i]), x);
    table.rows.push_back({std::to_string(options.rows[i]),
                          interval_text(exchange, 2),
                          interval_text(share, 3),
                          fmt::format("{:.1f}", measured.exchange_bytes[i] / 1e3)});
  }
  report->tables.push_back(std::move(table));
}

// More rows choose more experts: what the steps read, and whether they take as much longer.
void add_experts(const CurveOptions& options, const Measured& measured, BenchReport* report) {
  BenchTable table{"experts", {"rows", "weights read, MB", "x one row", "time by weights"}, {}};
  for (size_t i = 0; i < options.rows.size(); ++i) {
    const BenchX x = {"rows", static_cast<double>(options.rows[i])};
    const double ratio = measured.step_bytes[i] / measured.step_bytes[0];
    report->add_figure("weights read / of one row", "", ratio, x);
    std::vector<double> expected_ms = measured.step_ms[0];
    for (double& ms : expected_ms) ms *= ratio;
    const Interval by_weights = report->add_figure(
        "step / step by weights read", "", bootstrap_ratio(measured.step_ms[i], expected_ms), x);
    table.rows.push_back({std::to_string(options.rows[i]),
                          fmt::format("{:.0f}", measured.step_bytes[i] / 1e6),
                          fmt::format("{:.2f}", ratio),
                          interval_text(by_weights, 3)});
  }
  report->tables.push_back(std::move(table));
}

int measure(const BenchRun& run, const TargetContext& context, const CurveOptions& options) {
  const int32_t most = *std::max_element(options.rows.begin(), options.rows.end());
  StepRunner runner(context, options.context + most);
  std::optional<BenchReport> report;
  if (runner.reports()) report = run.new_report(context.topology);
  const Measured measured = measure_steps(runner, options);
  if (!report) return 0;
  report->title = fmt::format("{}, context {}", describe_target(context), options.context);
  fill_report(context, options, runner, measured, &*report);
  add_exchange(options, measured, &*report);
  if (context.loaded.model->config().experts.count > 0) add_experts(options, measured, &*report);
  run.finish(std::move(*report));
  return 0;
}

}  // namespace

int verify_curve_bench(const CommandLine& line) {
  CurveOptions options;
  BenchRun run("verify-curve", line, curve_options(&options));
  options.rows.push_back(1);
  std::sort(options.rows.begin(), options.rows.end());
  options.rows.erase(std::unique(options.rows.begin(), options.rows.end()), options.rows.end());
  RunConfig& config = run.config();
  config.max_num_seqs = 1;
  config.max_num_batched_tokens = std::max(config.max_num_batched_tokens, options.rows.back());
  if (!run.is_given("max_model_len")) config.max_model_len = options.context + options.rows.back();
  if (config.max_model_len < options.context + options.rows.back())
    throw Error(fmt::format("max_model_len {} is less than context {} and {} rows",
                            config.max_model_len,
                            options.context,
                            options.rows.back()));
  return run_on_targets(config, line.launch, [&](const TargetContext& context) {
    return measure(run, context, options);
  });
}

}  // namespace outrider
