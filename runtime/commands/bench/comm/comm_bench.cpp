// bench comm: the time of each message of a round between the ranks of this job, with nccl-tests'
// columns, and whether what arrived is right. With --device cuda: sums between the ranks' GPUs by
// every group that can be set up, and what of a round goes through the host. On every target rank;
// rank 0 reports.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/comm/device/hierarchical_group.h"
#include "runtime/comm/group/agreed_setup.h"
#include "runtime/commands/bench/comm/comm_cases.h"
#include "runtime/commands/bench/comm/device_comm_cases.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/ranks/job/job.h"
#include "runtime/ranks/loading/device_assignment.h"

namespace outrider {
namespace {

const std::vector<std::string>& device_group_names() {
  static const std::vector<std::string> names = {"staged", "exchange", "nccl", "hierarchical"};
  return names;
}

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

// Throws Error naming what is none of them.
void check_device_groups(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::find(device_group_names(), name) != device_group_names().end()) continue;
    throw Error(fmt::format(
        "--groups: there is no '{}'; there are {}", name, fmt::join(device_group_names(), ", ")));
  }
}

struct CommSamples {
  std::vector<double> us;  // of one exchange, a sample a turn
  uint64_t num_wrong = 0;  // over all ranks and turns
};

// By case. All members of the group call it.
std::vector<CommSamples> run_comm_cases(TargetGroup& group,
                                        const std::vector<CommCase>& cases,
                                        const CommOptions& options) {
  std::vector<CommSamples> samples(cases.size());
  uint64_t turn = 0;
  const auto sample = [&](size_t i) {
    std::array<uint64_t, 1> wrong = {cases[i].num_wrong(++turn)};
    group.all_reduce_sum(wrong);  // also lets the ranks start together
    samples[i].num_wrong += wrong[0];
    const auto start = std::chrono::steady_clock::now();
    for (int32_t n = 0; n < options.num_iterations; ++n) cases[i].run();
    if (cases[i].finish) cases[i].finish();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    samples[i].us.push_back(taken.count() / options.num_iterations);
  };
  std::vector<std::function<void()>> variants;
  for (size_t i = 0; i < cases.size(); ++i) variants.emplace_back([&sample, i] { sample(i); });
  for (const auto& variant : variants) variant();  // warm-up; what it finds wrong counts
  for (CommSamples& of_case : samples) of_case.us.clear();
  std::optional<Progress> progress;
  if (group.rank() == 0) progress.emplace("comm", options.num_repeats);
  run_in_turns(options.num_repeats, variants, progress ? &*progress : nullptr);
  return samples;
}

BenchTable comm_table() {
  return {
      "",
      {"message", "of", "size", "count", "type", "redop", "time, us", "algbw", "busbw", "#wrong"},
      {}};
}

struct CommRow {
  Interval time;  // us
  double bus_gb_s = 0;
};

// A row of the first table; its figures also go into the report.
CommRow add_case(const CommCase& one, const CommSamples& samples, BenchReport* report) {
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
  return {time, bus};
}

// Returns the exit code: 1 when something arrived wrong.
int finish(const BenchRun& run, const std::vector<CommSamples>& samples, BenchReport report) {
  uint64_t num_wrong = 0;
  for (const CommSamples& of_case : samples) num_wrong += of_case.num_wrong;
  if (num_wrong > 0) report.notes.push_back(fmt::format("{} elements are WRONG.", num_wrong));
  run.finish(std::move(report));
  return num_wrong == 0 ? 0 : 1;
}

// What the exchanges of a step's partial sums come to.
void add_steps(const ModelConfig& model,
               const std::vector<CommCase>& cases,
               const std::vector<CommSamples>& samples,
               BenchReport* report) {
  const int num_sums = 2 * model.n_layers + 1;
  BenchTable table{
      fmt::format("the {} sums of a step", num_sums), {"rows", "ms", "kB of a rank"}, {}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const CommCase& one = cases[i];
    if (one.x_name != "rows") continue;
    const double ms = report->add_figure("partial sums of a step",
                                         "ms",
                                         num_sums * median(samples[i].us) / 1e3,
                                         {one.x_name, static_cast<double>(one.x)});
    table.rows.push_back(
        {std::to_string(one.x),
         fmt::format("{:.3f}", ms),
         fmt::format("{:.1f}", num_sums * static_cast<double>(one.num_bytes) / 1e3)});
  }
  report->tables.push_back(std::move(table));
}

// ---- sums between GPUs

struct NamedGroup {
  std::string name;
  std::unique_ptr<DeviceGroup> group;
};

std::unique_ptr<DeviceGroup> make_group(const std::string& name,
                                        const DeviceAssignment& assignment,
                                        const TargetContext& context,
                                        size_t max_count) {
  TargetGroup& over_host = *context.loaded.group;
  const ExchangeOptions exchange = {.max_count = max_count};
  const NcclOptions nccl = {.max_count = max_count, .check_alive = [&context] {
                              context.world.check_alive(context.num_targets);
                            }};
  if (name == "staged") {
    std::unique_ptr<DeviceGroup> staged;
    set_up_together(over_host, "sums through the host cannot be set up", [&] {
      staged = make_staged_device_group(
          *assignment.device, assignment.backend->ops, over_host, max_count);
    });
    return staged;
  }
  if (name == "exchange")
    return make_exchange_group(*assignment.device, *assignment.backend, over_host, exchange);
  if (name == "nccl")
    return make_nccl_group(*assignment.device, *assignment.backend, over_host, nccl);
  return make_hierarchical_group(
      *assignment.device, *assignment.backend, over_host, {.within = exchange, .between = nccl});
}

// Those that can be set up; a note on each of the others. Alike on all ranks.
std::vector<NamedGroup> make_groups(const std::vector<std::string>& names,
                                    const DeviceAssignment& assignment,
                                    const TargetContext& context,
                                    size_t max_count,
                                    std::vector<std::string>* notes) {
  std::vector<NamedGroup> groups;
  for (const std::string& name : names) {
    try {
      groups.push_back({name, make_group(name, assignment, context, max_count)});
    } catch (const Error& error) {
      notes->push_back(fmt::format("{} is left out: {}.", name, error.what()));
    }
  }
  return groups;
}

DeviceAssignment take_seat(const TargetContext& context) {
  const World& world = context.world;
  return assign_device(context.config,
                       {.index = world.num_ranks_here(world.rank()),
                        .num_targets = world.num_ranks_here(context.num_targets)},
                       false);
}

int measure_devices(const BenchRun& run,
                    const TargetContext& context,
                    const CommSizes& sizes,
                    const CommOptions& options) {
  TargetGroup& over_host = *context.loaded.group;
  const DeviceAssignment assignment = take_seat(context);
  DeviceCommBench bench(*assignment.device, assignment.backend->ops, over_host, sizes);
  std::vector<std::string> notes;
  const std::vector<NamedGroup> groups =
      make_groups(options.groups, assignment, context, bench.max_count(), &notes);
  std::vector<CommCase> cases;
  const auto add = [&](std::vector<CommCase> more) {
    for (CommCase& one : more) cases.push_back(std::move(one));
  };
  for (const NamedGroup& one : groups) add(bench.sums_of(*one.group, one.name));
  add(bench.keys());
  CommSizes through_host = sizes;
  through_host.rows.clear();
  add(comm_cases(context.world, over_host, through_host));
  const std::vector<CommSamples> samples = run_comm_cases(over_host, cases, options);
  std::array<uint64_t, 1> all_done = {1};
  over_host.all_reduce_sum(all_done);  // a group's memory goes when nobody writes into it
  if (over_host.rank() != 0) return 0;

  BenchReport report = run.new_report(context.topology);
  report.title = fmt::format("messages of model {} between {} ranks' GPUs ({}), {}",
                             context.config.model,
                             context.num_targets,
                             assignment.device->info().name,
                             context.topology.library);
  report.tables.push_back(comm_table());
  for (size_t i = 0; i < cases.size(); ++i) add_case(cases[i], samples[i], &report);
  report.notes = notes;
  report.notes.emplace_back(
      "Sizes in bytes, bandwidths in GB/s as nccl-tests define them, times of rank 0. Sums are "
      "launched one after the other and waited for at the end of a sample; those of a norm count "
      "the sum's bytes only. Plans, drafts and sampling keys go through the host, as in a job.");
  return finish(run, samples, std::move(report));
}

// ---- both

int measure(const BenchRun& run, const TargetContext& context, const CommOptions& options) {
  if (context.num_targets < 2) {
    throw Error(
        "bench comm measures what ranks say to each other, and there is only one: use mpirun -np "
        "2, or --tensor-parallel-size 2");
  }
  const CommSizes sizes = sizes_of(context, options);
  if (context.config.device == "cuda") return measure_devices(run, context, sizes, options);
  TargetGroup& group = *context.loaded.group;
  const std::vector<CommCase> cases = comm_cases(context.world, group, sizes);
  const std::vector<CommSamples> samples = run_comm_cases(group, cases, options);
  if (context.world.rank() != 0) return 0;

  BenchReport report = run.new_report(context.topology);
  report.title = fmt::format("messages of model {} between {} ranks, {}",
                             context.config.model,
                             context.num_targets,
                             context.topology.library);
  report.tables.push_back(comm_table());
  PlotSeries times{.name = "partial sums", .mark = PlotMark::kDots, .color = 0};
  PlotSeries bandwidths = times;
  for (size_t i = 0; i < cases.size(); ++i) {
    const CommRow row = add_case(cases[i], samples[i], &report);
    if (cases[i].x_name != "rows") continue;
    const double kilobytes = static_cast<double>(cases[i].num_bytes) / 1e3;
    times.points.push_back(plot_point(kilobytes, row.time));
    bandwidths.points.push_back({kilobytes, row.bus_gb_s});
  }
  add_steps(context.loaded.model->config(), cases, samples, &report);
  report.notes.emplace_back(
      "Sizes in bytes, bandwidths in GB/s as nccl-tests define them, times of rank 0. A message "
      "with its answer counts both; the draft's part is played by the last rank.");
  report.plot = {
      .title = report.title,
      .panels = {{"time", "kB", "us", {times}}, {"bus bandwidth", "kB", "GB/s", {bandwidths}}}};
  return finish(run, samples, std::move(report));
}

}  // namespace

int comm_bench(const CommandLine& line) {
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

}  // namespace outrider
