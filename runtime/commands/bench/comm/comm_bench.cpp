// bench comm: the time of each message of a round between the ranks of this job, with nccl-tests'
// columns, and whether what arrived is right. On every target rank; rank 0 reports.
#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/commands/bench/comm/comm_cases.h"
#include "runtime/commands/bench/comm/comm_runner.h"
#include "runtime/commands/bench/comm/device_comm_bench.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/ranks/job/job.h"

namespace outrider {
namespace {

struct CommOptions {
  std::vector<int32_t> rows = {1, 5, 17, 64, 256};
  std::vector<int32_t> num_seqs = {1, 8, 32};
  int32_t num_iterations = 20;
  int32_t num_repeats = 20;
  int32_t hidden_dim = 0;
  std::vector<std::string> groups = device_group_names();
};

std::vector<Option> comm_options(CommOptions* options) {
  return {
      integer_list_option(
          "rows", &options->rows, 1, 4096, "rows of the steps whose partial sums are exchanged"),
      integer_list_option("num_seqs",
                          &options->num_seqs,
                          1,
                          1024,
                          "sequences of the rounds that are planned and sampled"),
      integer_option(
          "iters", &options->num_iterations, 1, 100000, "exchanges in a row that make one sample"),
      integer_option("repeat", &options->num_repeats, 1, 100000, "turns, a sample of each"),
      integer_option(
          "hidden_dim", &options->hidden_dim, 0, 65536, "floats of a row; 0 = the model's"),
      word_list_option(
          "groups",
          &options->groups,
          "who sums between GPUs, with --device cuda (staged,exchange,nccl,hierarchical; "
          "what cannot be set up is left out)"),
  };
}

CommSizes sizes_of(const TargetContext& context, const CommOptions& options) {
  constexpr int32_t kDraftLen = 4;
  const ModelConfig& model = context.loaded.model->config();
  const Numerics numerics = context.loaded.model->shard().numerics;
  return {.hidden_dim = options.hidden_dim > 0 ? options.hidden_dim : model.hidden_dim,
          .vocab_size = model.vocab_size,
          .rows = options.rows,
          .num_seqs = options.num_seqs,
          .draft_len = context.config.speculative.num_speculative_tokens == kAutoDraftLen
                           ? kDraftLen
                           : context.config.speculative.num_speculative_tokens,
          .num_candidates = context.config.speculative.num_draft_candidates,
          .fold = numerics == Numerics::kStrict ? Fold::kTree : Fold::kRankOrder};
}

struct Measured {
  std::vector<CommCase> cases;
  std::vector<CommSamples> samples;
};

struct CommCurves {
  PlotSeries time{.name = "partial sums", .mark = PlotMark::kDots, .color = 0};
  PlotSeries bandwidth{.name = "partial sums", .mark = PlotMark::kDots, .color = 0};
};

void add_case(const CommCase& one,
              const CommSamples& samples,
              BenchReport* report,
              CommCurves* curves) {
  const CommRow row = add_comm_row(one, samples, report, &report->tables[0]);
  if (one.x_name != "rows") return;
  const double kilobytes = static_cast<double>(one.num_bytes) / 1e3;
  curves->time.points.push_back(plot_point(kilobytes, row.time));
  curves->bandwidth.points.push_back({kilobytes, row.bus_gb_s});
}

// What the exchanges of a step's partial sums come to.
void add_steps(const ModelConfig& model, const Measured& measured, BenchReport* report) {
  const int num_sums = 2 * model.n_layers + 1;
  BenchTable table{
      fmt::format("the {} sums of a step", num_sums), {"rows", "ms", "kB of a rank"}, {}};
  for (size_t i = 0; i < measured.cases.size(); ++i) {
    const CommCase& one = measured.cases[i];
    if (one.x_name != "rows") continue;
    const double ms = report->add_figure("partial sums of a step",
                                         "ms",
                                         num_sums * median(measured.samples[i].us) / 1e3,
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
                      const Measured& measured,
                      uint64_t num_wrong) {
  BenchReport report = run.new_report(context.topology);
  const ModelConfig& model = context.loaded.model->config();
  report.title = fmt::format("messages of model {} between {} ranks, {}",
                             context.config.model,
                             context.num_targets,
                             context.topology.library);
  report.tables.push_back(comm_table());
  CommCurves curves;
  for (size_t i = 0; i < measured.cases.size(); ++i)
    add_case(measured.cases[i], measured.samples[i], &report, &curves);
  add_steps(model, measured, &report);
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
  const CommSizes sizes = sizes_of(context, options);
  if (context.config.device == "cuda") {
    return measure_device_comm(
        run, context, sizes, {options.groups, options.num_iterations, options.num_repeats});
  }
  TargetGroup& group = *context.loaded.group;
  Measured measured{.cases = comm_cases(context.world, group, sizes)};
  measured.samples =
      run_comm_cases(group, measured.cases, options.num_iterations, options.num_repeats);
  if (context.world.rank() != 0) return 0;
  const uint64_t num_wrong = count_wrong(measured.samples);
  run.finish(report_of(run, context, measured, num_wrong));
  return num_wrong == 0 ? 0 : 1;
}

int run_comm(const CommandLine& line) {
  CommOptions options;
  BenchRun run("comm", line, comm_options(&options));
  check_device_groups(options.groups);
  RunConfig& config = run.config();
  config.max_num_seqs = 1;
  if (!run.is_given("max_model_len")) config.max_model_len = config.block_size;
  return run_on_targets(config, line.launch, [&](const TargetContext& context) {
    return measure(run, context, options);
  });
}

}  // namespace

Command comm_bench() {
  return {
      "comm", "each message of a round between the ranks: time, size, right or wrong", run_comm};
}

}  // namespace outrider
