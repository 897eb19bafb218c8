// See job.h.
#include "runtime/ranks/job/job.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "models/simulated/spec.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ranks/job/abort.h"
#include "runtime/ranks/job/draft_part.h"
#include "runtime/ranks/job/serving_resources.h"
#include "runtime/ranks/job/signals.h"
#include "runtime/ranks/job/target_part.h"
#include "runtime/ranks/loading/draft_pair.h"
#include "runtime/ranks/startup/facts.h"
#include "runtime/ranks/startup/handshake.h"

namespace outrider {
namespace {

// What the ranks tell each other before they load, and what only rank 0 needs.
struct Preparation {
  RankLayout layout;
  std::string problem;
  std::vector<Fact> facts;
  ServingResources resources;
};

// In one process all ranks have the same configuration and files: they have nothing to compare.
Preparation prepare(const World& world,
                    const RunConfig& config,
                    const JobMode& mode,
                    bool is_process) {
  Preparation prepared{.layout = {.num_targets = world.size()}};
  if (is_process) {
    prepared.facts.push_back({"program", mode.program});
    prepared.facts.push_back({"watchdog_timeout", fmt::format("{}", config.watchdog_timeout_s)});
  }
  try {
    prepared.layout = make_layout(config, is_process ? world.size() : 0);
    if (is_process) add_startup_facts(config, prepared.layout, world.rank(), &prepared.facts);
    if (world.rank() == 0 && mode.extras.before_load) mode.extras.before_load();
    if (world.rank() == 0 && mode.front_end) prepared.resources = load_serving_resources(config);
    // Not first in load_draft(), when the target's weights are being read.
    if (prepared.layout.role(world.rank()) == Role::kDraft) check_draft_vocabulary(config);
  } catch (const std::exception& error) {
    prepared.problem = error.what();
  }
  return prepared;
}

// engine: the draft rank's child under MPI, or null.
int run_rank(World& world,
             const RunConfig& config,
             DraftEngine* engine,
             const JobMode& mode,
             bool is_process) {
  const Preparation prepared = prepare(world, config, mode, is_process);
  const RankLayout& layout = prepared.layout;
  set_thread_log_name(layout.name(world.rank()));
  startup_handshake(world, layout, prepared.problem, prepared.facts);
  JobTrace trace(mode.front_end ? config.trace : "");
  const JobRank rank{.world = world, .config = config, .layout = layout, .trace = trace};
  if (layout.role(world.rank()) != Role::kDraft) return run_target(rank, mode, prepared.resources);
  run_draft(rank, engine);
  return 0;
}

struct JobResult {
  int exit_code = 0;
  std::string problem;  // why it did not begin: the same on all ranks
};

// A rank that is a process, until only the end of the job is left.
JobResult run_process(World& world,
                      const RunConfig& config,
                      DraftEngine* engine,
                      const JobMode& mode) {
  try {
    return {run_rank(world, config, engine, mode, true), ""};
  } catch (const std::exception& error) {
    return {kExitUsage, error.what()};
  }
}

// A job whose size does not fit ends at the handshake: it needs no watchdog.
WatchOptions watch_options(const RunConfig& config) {
  const auto roles = [&config](int world_size) -> WatchOptions::Roles {
    RankLayout layout;
    try {
      layout = make_layout(config, world_size);
    } catch (const Error&) {
      return {};
    }
    WatchOptions::Roles found{.num_targets = layout.num_targets, .names = {}};
    for (int rank = 0; rank < layout.num_ranks(); ++rank) found.names.push_back(layout.name(rank));
    return found;
  };
  return {.timeout_s = config.watchdog_timeout_s, .port = config.watchdog_port, .roles = roles};
}

int run_mpi_job(const RunConfig& config, const Launch& launch, const JobMode& mode) {
  const std::unique_ptr<DraftEngine> engine = start_draft_engine(config);
  const std::unique_ptr<World> world =
      make_mpi_world(launch.argc, launch.argv, watch_options(config));
  refuse_foreign_launcher(world->size());
  const JobResult result = run_process(*world, config, engine.get(), mode);
  // Said before the ranks leave: of the first that has left, mpirun ends the others.
  if (!result.problem.empty() && world->rank() == 0)
    std::fprintf(stderr, "outrider: %s\n", result.problem.c_str());
  world->finish(result.exit_code);
  return result.exit_code;
}

// Nobody listens for signals while the models are loaded: until somebody does, one ends the
// process, as if it had not been blocked.
class SignalWatch {
 public:
  explicit SignalWatch(std::optional<int> exit_code)
      : thread_([exit_code](const std::stop_token& done) {
          while (!done.stop_requested()) {
            if (!wait_stop_signal(std::chrono::milliseconds(50))) continue;
            std::fprintf(stderr, "outrider: stopped by a signal\n");
            if (exit_code) std::_Exit(*exit_code);
            end_by_sigterm();
          }
        }) {}

 private:
  std::jthread thread_;
};

int run_threads_job(const RunConfig& config, const JobMode& mode) {
  refuse_foreign_launcher(1);
  int exit_code = 0;
  std::optional<SignalWatch> watch(std::in_place, mode.extras.stop_code);
  JobMode watched = mode;
  if (mode.front_end) {
    watched.front_end = [&](const FrontEndContext& context) {
      watch.reset();
      return mode.front_end(context);
    };
  } else {
    watched.on_targets = [&](const TargetContext& context) {
      if (context.world.rank() == 0) watch.reset();
      return mode.on_targets(context);
    };
  }
  run_in_process(
      make_layout(config, 0).num_ranks(),
      [&](World& world) {
        const int code = run_rank(world, config, nullptr, watched, false);
        if (world.rank() == 0) exit_code = code;
      },
      mode.extras.link);
  return exit_code;
}

int run_for(const RunConfig& config, const Launch& launch, const JobMode& mode) {
  block_stop_signals();
  if (!launched_by_mpi()) return run_threads_job(config, mode);
  if (JobClock::is_virtual() || mode.extras.link.latency.count() > 0)
    throw Error("virtual time and made-up links need all ranks in one process, without mpirun");
  return run_mpi_job(config, launch, mode);
}

}  // namespace

int run_job(const RunConfig& config,
            const Launch& launch,
            const FrontEnd& front_end,
            const JobExtras& extras) {
  return run_for(
      config, launch, {.front_end = front_end, .extras = extras, .program = launch.program});
}

int run_job_in(World& world, const RunConfig& config, const FrontEnd& front_end) {
  block_stop_signals();
  const JobResult result = run_process(world, config, nullptr, {.front_end = front_end});
  world.finish(result.exit_code);
  if (!result.problem.empty() && world.rank() == 0) throw Error(result.problem);
  return result.exit_code;
}

int run_on_targets(const RunConfig& config, const Launch& launch, const OnTargets& body) {
  if (is_simulated(config.model))
    throw Error("a simulated model computes nothing to measure: give --model a real one");
  RunConfig without_draft = config;
  without_draft.speculative.method = "none";
  JobMode mode;
  mode.on_targets = body;
  mode.program = launch.program;
  return run_for(without_draft, launch, mode);
}

}  // namespace outrider
