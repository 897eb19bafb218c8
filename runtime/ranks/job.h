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
int run_job(const RunConfig& config, int* argc, char*** argv, const FrontEnd& front_end);

}  // namespace outrider
