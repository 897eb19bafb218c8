// See job.h.
#include "runtime/ranks/job.h"

#include <cstdio>

#include "models/simulated_spec.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ranks/job/draft_part.h"
#include "runtime/ranks/job/ending.h"
#include "runtime/ranks/job/target_part.h"
#include "runtime/ranks/signals.h"

namespace outrider {
namespace {

// engine: the draft rank's child under MPI, or null.
int run_rank(World& world,
             const RunConfig& config,
             const RankLayout& layout,
             DraftEngine* engine,
             const Purpose& purpose) {
  set_thread_log_name(layout.name(world.rank()));
  JobTrace trace(purpose.front_end ? config.trace : "");
  const JobRank rank{.world = world, .config = config, .layout = layout, .trace = trace};
  if (layout.role(world.rank()) != Role::kDraft) return run_target(rank, purpose);
  run_draft(rank, engine);
  return 0;
}

struct Ending {
  int exit_code = 0;
  std::string problem;  // why it did not begin: the same on all ranks
};

// A rank that is a process, until only the end of the job is left.
Ending run_process(World& world,
                   const RunConfig& config,
                   DraftEngine* engine,
                   const Purpose& purpose) {
  try {
    const RankLayout layout = make_layout(config, world.size());
    return {run_rank(world, config, layout, engine, purpose), ""};
  } catch (const std::exception& error) {
    return {kExitUsage, error.what()};
  }
}

int run_mpi_job(const RunConfig& config, int* argc, char*** argv, const Purpose& purpose) {
  const std::unique_ptr<DraftEngine> engine = start_draft_engine(config);
  const std::unique_ptr<World> world = make_mpi_world(argc, argv);
  const Ending ending = run_process(*world, config, engine.get(), purpose);
  // Said before the ranks leave: of the first that has left, mpirun ends the others.
  if (!ending.problem.empty() && world->rank() == 0)
    std::fprintf(stderr, "outrider: %s\n", ending.problem.c_str());
  world->finish(ending.exit_code);
  return ending.exit_code;
}

int run_threads_job(const RunConfig& config, const Purpose& purpose, const InProcessLink& link) {
  const RankLayout layout = make_layout(config, 0);
  int exit_code = 0;
  run_in_process(
      layout.num_ranks(),
      [&](World& world) {
        const int code = run_rank(world, config, layout, nullptr, purpose);
        if (world.rank() == 0) exit_code = code;
      },
      link);
  return exit_code;
}

int run_for(const RunConfig& config,
            int* argc,
            char*** argv,
            const Purpose& purpose,
            const InProcessLink& link = {}) {
  block_stop_signals();
  if (!launched_by_mpi()) return run_threads_job(config, purpose, link);
  if (JobClock::is_virtual() || link.latency.count() > 0)
    throw Error("virtual time and made-up links need all ranks in one process, without mpirun");
  return run_mpi_job(config, argc, argv, purpose);
}

}  // namespace

int run_job(const RunConfig& config,
            int* argc,
            char*** argv,
            const FrontEnd& front_end,
            const InProcessLink& link) {
  return run_for(config, argc, argv, {.front_end = front_end, .on_targets = {}}, link);
}

int run_job_in(World& world, const RunConfig& config, const FrontEnd& front_end) {
  block_stop_signals();
  const Ending ending =
      run_process(world, config, nullptr, {.front_end = front_end, .on_targets = {}});
  world.finish(ending.exit_code);
  if (!ending.problem.empty() && world.rank() == 0) throw Error(ending.problem);
  return ending.exit_code;
}

int run_on_targets(const RunConfig& config, int* argc, char*** argv, const OnTargets& body) {
  if (is_simulated(config.model))
    throw Error("a simulated model computes nothing to measure: give --model a real one");
  RunConfig without_draft = config;
  without_draft.speculative.method = "none";
  return run_for(without_draft, argc, argv, {.front_end = {}, .on_targets = body});
}

}  // namespace outrider
