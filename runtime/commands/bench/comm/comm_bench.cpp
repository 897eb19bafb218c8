// See comm_bench.h.
#include "runtime/commands/bench/comm/comm_bench.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/commands/bench/comm/comm_cases.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/ranks/job.h"

namespace outrider {
namespace {

struct CommOptions {
  std::vector<int32_t> rows = {1, 5, 17, 64, 256};
  std::vector<int32_t> num_seqs = {1, 8, 32};
  int32_t num_iterations = 20;
  int32_t num_repeats = 20;
};

std::vector<Option> comm_options(CommOptions* options) {
  return {
      integer_list_option("rows",
                          &options->rows,
                          1,
                          4096,
                          "rows of the steps whose partial sums are exchanged (1,5,17,64,256)"),
      integer_list_option("num_seqs",
                          &options->num_seqs,
                          1,
                          1024,
                          "sequences of the rounds that are planned and sampled (1,8,32)"),
      integer_option("iters",
                     &options->num_iterations,
                     1,
                     100000,
                     "exchanges in a row that make one sample (20)"),
      integer_option("repeat", &options->num_repeats, 1, 100000, "turns, a sample of each (20)"),
  };
}

struct CommSamples {
  std::vector<double> us;  // of one exchange, a sample a turn
  uint64_t num_wrong = 0;  // over all ranks and turns
};

class CommRunner {
 public:
  CommRunner(const TargetContext& context, const CommOptions& options)
      : context_(context),
        options_(options),
        group_(*context.loaded.group),
        cases_(comm_cases(context.world, group_, sizes_of(context, options))),
        samples_(cases_.size()) {}

  void measure() {
    std::vector<std::function<void()>> variants;
    for (size_t i = 0; i < cases_.size(); ++i) variants.emplace_back([this, i] { sample(i); });
    for (const auto& variant : variants) variant();  // warm-up; what it finds wrong counts
    for (CommSamples& samples : samples_) samples.us.clear();
    std::optional<Progress> progress;
    if (context_.world.rank() == 0) progress.emplace("comm", options_.num_repeats);
    run_in_turns(options_.num_repeats, variants, progress ? &*progress : nullptr);
  }

  const std::vector<CommCase>& cases() const { return cases_; }
  const std::vector<CommSamples>& samples() const { return samples_; }

 private:
  static CommSizes sizes_of(const TargetContext& context, const CommOptions& options) {
    constexpr int32_t kDraftLen = 4;
    const ModelConfig& model = context.loaded.model->config();
    const Numerics numerics = context.loaded.model->shard().numerics;
    return {.hidden_dim = model.hidden_dim,
            .vocab_size = model.vocab_size,
            .rows = options.rows,
            .num_seqs = options.num_seqs,
            .draft_len = context.config.speculative.num_speculative_tokens == kAutoDraftLen
                             ? kDraftLen
                             : context.config.speculative.num_speculative_tokens,
            .num_candidates = context.config.speculative.num_draft_candidates,
            .fold = numerics == Numerics::kStrict ? Fold::kTree : Fold::kRankOrder};
  }

  void sample(size_t i) {
    std::array<uint64_t, 1> wrong = {cases_[i].num_wrong(++turn_)};
    group_.all_reduce_sum(wrong);  // also lets the ranks start together
    samples_[i].num_wrong += wrong[0];
    const auto start = std::chrono::steady_clock::now();
    for (int32_t n = 0; n < options_.num_iterations; ++n) cases_[i].run();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    samples_[i].us.push_back(taken.count() / options_.num_iterations);
  }

  const TargetContext& context_;
  const CommOptions& options_;
  TargetGroup& group_;
  std::vector<CommCase> cases_;
  std::vector<CommSamples> samples_;
  uint64_t turn_ = 0;
};

struct CommCurves {
  PlotSeries time{.name = "partial sums", .mark = PlotMark::kDots, .color = 0};
  PlotSeries bandwidth{.name = "partial sums", .mark = PlotMark::kDots, .color = 0};
};

void add_case(const CommCase& one,
              const CommSamples& samples,
              BenchReport* report,
              CommCurves* curves) {
  const BenchX x = {one.x_name, static_cast<double>(one.x)};
  report->add_series(one.message, "us", samples.us, x);
  const Interval time =
      report->add_figure(one.message + ": time", "us", bootstrap_median(samples.us), x);
  const double bytes = static_cast<double>(one.num_bytes);
  report->add_figure(one.message + ": size", "bytes", bytes, x);
  const double algorithm =
      report->add_figure(one.message + ": algbw", "GB/s", bytes / time.value / 1e3, x);
  const double bus =
      report->add_figure(one.message + ": busbw", "GB/s", algorithm * one.bus_factor, x);
  report->add_figure(one.message + ": #wrong", "", static_cast<double>(samples.num_wrong), x);
  report->tables[0].rows.push_back({one.message,
                                    fmt::format("{} {}", one.x, one.x_name),
                                    std::to_string(one.num_bytes),
                                    std::to_string(one.count),
                                    one.type,
                                    one.redop,
                                    interval_text(time, 1),
                                    fmt::format("{:.3f}", algorithm),
                                    fmt::format("{:.3f}", bus),
                                    std::to_string(samples.num_wrong)});
  if (one.x_name != "rows") return;
  curves->time.points.push_back(plot_point(bytes / 1e3, time));
  curves->bandwidth.points.push_back({bytes / 1e3, bus});
}

// What the exchanges of a step's partial sums come to.
void add_steps(const ModelConfig& model, const CommRunner& runner, BenchReport* report) {
  const int num_sums = 2 * model.n_layers + 1;
  BenchTable table{
      fmt::format("the {} sums of a step", num_sums), {"rows", "ms", "kB of a rank"}, {}};
  for (size_t i = 0; i < runner.cases().size(); ++i) {
    const CommCase& one = runner.cases()[i];
    if (one.x_name != "rows") continue;
    const double ms = report->add_figure("partial sums of a step",
                                         "ms",
                                         num_sums * median(runner.samples()[i].us) / 1e3,
                                         {one.x_name, static_cast<double>(one.x)});
    table.rows.push_back(
        {std::to_string(one.x),
         fmt::format("{:.3f}", ms),
         fmt::format("{:.1f}", num_sums * static_cast<double>(one.num_bytes) / 1e3)});
  }
  report->tables.push_back(std::move(table));
}

BenchReport report_of(const BenchRun& run,
                      const TargetContext& context,
                      const CommRunner& runner,
                      uint64_t num_wrong) {
  BenchReport report = run.new_report(context.topology);
  const ModelConfig& model = context.loaded.model->config();
  report.title = fmt::format("messages of model {} between {} ranks, {}",
                             context.config.model,
                             context.num_targets,
                             context.topology.library);
  report.tables.push_back(
      {"",
       {"message", "of", "size", "count", "type", "redop", "time, us", "algbw", "busbw", "#wrong"},
       {}});
  CommCurves curves;
  for (size_t i = 0; i < runner.cases().size(); ++i)
    add_case(runner.cases()[i], runner.samples()[i], &report, &curves);
  add_steps(model, runner, &report);
  report.notes.emplace_back(
      "Sizes in bytes, bandwidths in GB/s as nccl-tests define them, times of rank 0. A message "
      "with "
      "its answer counts both; the draft's part is played by the last rank.");
  if (num_wrong > 0) report.notes.push_back(fmt::format("{} elements are WRONG.", num_wrong));
  report.plot = {.title = report.title,
                 .panels = {{"time", "kB", "us", {curves.time}},
                            {"bus bandwidth", "kB", "GB/s", {curves.bandwidth}}}};
  return report;
}

int measure(const BenchRun& run, const TargetContext& context, const CommOptions& options) {
  if (context.num_targets < 2) {
    throw Error(
        "bench comm measures what ranks say to each other, and there is only one: use mpirun -np "
        "2, or --tensor-parallel-size 2");
  }
  CommRunner runner(context, options);
  runner.measure();
  if (context.world.rank() != 0) return 0;
  uint64_t num_wrong = 0;
  for (const CommSamples& samples : runner.samples()) num_wrong += samples.num_wrong;
  run.finish(report_of(run, context, runner, num_wrong));
  return num_wrong == 0 ? 0 : 1;
}

int run_comm(const CommandLine& line) {
  CommOptions options;
  BenchRun run("comm", line, comm_options(&options));
  RunConfig& config = run.config();
  config.max_num_seqs = 1;
  if (!run.is_given("max_model_len")) config.max_model_len = config.block_size;
  return run_on_targets(config, line.argc, line.argv, [&](const TargetContext& context) {
    return measure(run, context, options);
  });
}

std::string comm_help() {
  CommOptions options;
  return bench_options_help(comm_options(&options));
}

}  // namespace

BenchKind comm_bench() {
  return {"comm",
          "each message of a round between the ranks: time, size, right or wrong",
          run_comm,
          comm_help};
}

}  // namespace outrider
