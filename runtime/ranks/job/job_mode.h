// What a job is for: a front end on rank 0 (serve, batch, bench, verify) with its engine, or
// something that the target ranks do together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "http/answers/answer_format.h"
#include "http/api/serving_metrics.h"
#include "models/checkpoint/model_config.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/coordinator/coordinator.h"
#include "runtime/ranks/loading/model_loader.h"
#include "runtime/ranks/startup/ready_barrier.h"

namespace outrider {

// What a front end works with. Valid while it runs.
struct FrontEndContext {
  const RunConfig& config;
  Coordinator& engine;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  AnswerFormats answer_formats;
  ModelConfig model_config;
  std::shared_ptr<const GrammarEngine> grammars;  // null where there is none
  GenerationDefaults defaults;
  ServingMetrics& metrics;
  Topology topology;
};

// Runs on its own thread on rank 0 while the coordinator's loop runs; its result is the job's exit
// code. When it returns, the engine finishes what is running and the job ends.
using FrontEnd = std::function<int(const FrontEndContext&)>;

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

// What a job may be given beside its front end.
struct JobExtras {
  // On rank 0 before anything is loaded; an Error there is a start-up problem.
  std::function<void()> before_load;
  InProcessLink link;  // what messages between threads of one process take; an error under MPI
  // Of a process that a signal ends while it loads; by default it ends by SIGTERM.
  std::optional<int> stop_code = {};
};

// One of the first two is empty.
struct JobMode {
  FrontEnd front_end;
  OnTargets on_targets;
  JobExtras extras;
  std::string program;  // Launch::program
};

}  // namespace outrider
