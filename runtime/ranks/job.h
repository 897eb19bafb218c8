// One job from start to end, on every rank and in both forms (MPI processes, or threads of one
// process): layout, loading, roll call, then the role's loop. What the job is for (serve, batch,
// bench) is a front end on rank 0.
#pragma once

#include <functional>
#include <memory>

#include "http/serving_metrics.h"
#include "models/chat_template.h"
#include "models/tokenizer.h"
#include "runtime/base/run_config.h"
#include "runtime/ranks/coordinator.h"
#include "runtime/ranks/model_loader.h"
#include "runtime/ranks/roll_call.h"

namespace outrider {

// What a front end works with. Valid while it runs.
struct FrontEndContext {
  const RunConfig& config;
  Coordinator& engine;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  ModelConfig model_config;
  GenerationDefaults defaults;
  ServingMetrics& metrics;
  Topology topology;
};

// Runs on its own thread on rank 0 while the coordinator's loop runs; its result is the job's exit
// code. When it returns, the engine finishes what is running and the job ends.
using FrontEnd = std::function<int(const FrontEndContext&)>;

// Returns the exit code of this process (0 on ranks other than 0). Throws Error for a start-up
// problem, on rank 0 only; the other ranks return 2 silently.
// In one process the job runs under the virtual clock when there is one, front end included, and
// link is what its messages take; under MPI both are errors.
int run_job(const RunConfig& config,
            int* argc,
            char*** argv,
            const FrontEnd& front_end,
            const InProcessLink& link = {});

// One rank of a job, in a process that somebody else started and gave a world: as run_job under
// MPI, but the draft computes in its rank's own process.
int run_job_in(World& world, const RunConfig& config, const FrontEnd& front_end);

// A target rank with its shard loaded, without coordinator, rounds and draft: for measurements of
// the forward pass alone.
struct TargetContext {
  const RunConfig& config;
  World& world;
  int num_targets = 1;
  LoadedModel& loaded;
  Topology topology;  // on rank 0; empty elsewhere
};

// Runs on every target rank at once; its result is the rank's exit code. What it does with the
// model is collective, so all ranks must do the same steps. With several ranks an exception ends
// the job.
using OnTargets = std::function<int(const TargetContext&)>;

// As run_job, but every rank is a target and runs body.
int run_on_targets(const RunConfig& config, int* argc, char*** argv, const OnTargets& body);

}  // namespace outrider
