// See device_comm_bench.h.
#include "runtime/commands/bench/comm/device_comm_bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/comm/device/hierarchical_group.h"
#include "runtime/comm/group/agreed_setup.h"
#include "runtime/commands/bench/comm/comm_runner.h"
#include "runtime/commands/bench/comm/device_comm_cases.h"
#include "runtime/ranks/loading/device_assignment.h"

namespace outrider {
namespace {

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

}  // namespace

void check_device_groups(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::find(device_group_names(), name) != device_group_names().end()) continue;
    throw Error(fmt::format(
        "--groups: there is no '{}'; there are {}", name, fmt::join(device_group_names(), ", ")));
  }
}

const std::vector<std::string>& device_group_names() {
  static const std::vector<std::string> names = {"staged", "exchange", "nccl", "hierarchical"};
  return names;
}

int measure_device_comm(const BenchRun& run,
                        const TargetContext& context,
                        const CommSizes& sizes,
                        const DeviceCommOptions& options) {
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
  const std::vector<CommSamples> samples =
      run_comm_cases(over_host, cases, options.num_iterations, options.num_repeats);
  const uint64_t num_wrong = count_wrong(samples);
  std::array<uint64_t, 1> all_done = {1};
  over_host.all_reduce_sum(all_done);  // a group's memory goes when nobody writes into it
  if (over_host.rank() != 0) return 0;

  BenchReport report = run.new_report(context.topology);
  report.title = fmt::format("messages of model {} between {} ranks' GPUs ({}), {}",
                             context.config.model,
                             context.num_targets,
                             assignment.device->info().name,
                             context.topology.library);
  BenchTable table = comm_table();
  for (size_t i = 0; i < cases.size(); ++i) add_comm_row(cases[i], samples[i], &report, &table);
  report.tables.push_back(std::move(table));
  report.notes = notes;
  report.notes.emplace_back(
      "Sizes in bytes, bandwidths in GB/s as nccl-tests define them, times of rank 0. Sums are "
      "launched one after the "
      "other and waited for at the end of a sample; those of a norm count the sum's bytes only. "
      "Plans, drafts and sampling "
      "keys go through the host, as in a job.");
  if (num_wrong > 0) report.notes.push_back(fmt::format("{} elements are WRONG.", num_wrong));
  run.finish(report);
  return num_wrong == 0 ? 0 : 1;
}

}  // namespace outrider
