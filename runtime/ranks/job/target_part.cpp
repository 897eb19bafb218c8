// See target_part.h.
#include "runtime/ranks/job/target_part.h"

#include <string>
#include <utility>

#include "runtime/ranks/job/abort.h"
#include "runtime/ranks/job/coordinator_part.h"
#include "runtime/ranks/job/serving_resources.h"
#include "runtime/ranks/loading/grammar_loader.h"
#include "runtime/ranks/startup/device_check.h"
#include "runtime/ranks/startup/placement.h"
#include "runtime/ranks/target/faults.h"
#include "runtime/ranks/target/loop.h"
#include "runtime/ranks/target/target.h"

namespace outrider {
namespace {

// A target rank that is ready.
struct ReadyTarget {
  LoadedModel loaded;
  std::shared_ptr<const GrammarEngine> grammars;  // null where there is none
  Faults faults;
  Topology topology;  // rank 0's
};

bool coordinates(const JobRank& rank) {
  return rank.layout.role(rank.world.rank()) == Role::kCoordinator;
}

// Up to the ready barrier; what went wrong is said there.
std::string load_shard(const JobRank& rank,
                       const ops::ThreadPlan& threads,
                       DeviceAssignment assignment,
                       ReadyTarget* ready) {
  try {
    if (coordinates(rank)) rank.trace.open_file();
    ready->loaded = load_target(rank.config,
                                rank.layout,
                                rank.world.rank(),
                                threads,
                                rank.world.make_target_group(rank.layout.num_targets),
                                std::move(assignment));
    if (!coordinates(rank)) ready->grammars = load_grammar_engine(rank.config);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// After the ready barrier: what can hang when a rank is missing.
std::string begin_sums(const JobRank& rank, LoadedModel& loaded) {
  try {
    begin_together(loaded, rank.config, [&] { rank.world.check_alive(rank.layout.num_targets); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

ReadyTarget start_target(const JobRank& rank) {
  ReadyTarget ready;
  ops::ThreadPlan threads = 0;
  DeviceAssignment assignment = agreed_assignment(
      [&] {
        threads = threads_of_rank(rank.config, rank.world, rank.layout, Role::kTarget);
        ready.faults = Faults::from_environment(rank.world.rank(), rank.layout.num_targets);
        return target_assignment(rank.config, rank.world, rank.layout);
      },
      [&](const Bytes& descriptor) { return check_devices(rank.world, rank.layout, descriptor); });
  const std::string problem = load_shard(rank, threads, std::move(assignment), &ready);
  const Model* const model = ready.loaded.model.get();
  ready.topology = ready_barrier(rank.world,
                                 rank.layout,
                                 {.problem = problem,
                                  .num_threads = threads.num_threads,
                                  .device = ready.loaded.device_name(),
                                  .num_kv_blocks = model ? model->options().num_blocks : 0});
  checked_barrier(rank.world, rank.layout, begin_sums(rank, ready.loaded));
  return ready;
}

int run_on_this_target(const TargetContext& context, const OnTargets& body) {
  try {
    return body(context);
  } catch (const std::exception& error) {
    if (context.num_targets == 1) throw;
    abort_job(context.world, error.what());
  }
}

void run_rounds(const JobRank& rank, TargetRank& target) {
  try {
    run_target_loop(rank.world, rank.layout, target);
    rank.trace.hand_over(rank.world);
  } catch (const std::exception& error) {
    abort_job(rank.world, error.what());
  }
}

}  // namespace

int run_target(const JobRank& rank, const JobMode& mode, const ServingResources& resources) {
  ReadyTarget ready = start_target(rank);
  if (mode.on_targets) {
    return run_on_this_target({.config = rank.config,
                               .world = rank.world,
                               .num_targets = rank.layout.num_targets,
                               .loaded = ready.loaded,
                               .topology = ready.topology},
                              mode.on_targets);
  }
  rank.trace.compare_clocks(rank.world, rank.layout);
  const ThreadTrace recording(rank.trace.ring());
  const auto& grammars = coordinates(rank) ? resources.grammars : ready.grammars;
  TargetRank target(
      *ready.loaded.model, *ready.loaded.group, std::move(ready.faults), grammars.get());
  if (!coordinates(rank)) {
    run_rounds(rank, target);
    return 0;
  }
  const int exit_code = run_coordinator(rank, target, resources, ready.topology, mode.front_end);
  rank.trace.gather(rank.world, rank.layout, ready.topology);
  return exit_code;
}

}  // namespace outrider
