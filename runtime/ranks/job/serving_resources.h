// What rank 0 needs beside its shard to serve requests: the tokenizer and what goes with it, and
// what the options say of planning and of the engine that front ends see.
#pragma once

#include <memory>
#include <optional>

#include "http/answers/answer_format.h"
#include "models/checkpoint/model_config.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/comm/tcp.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/roles.h"
#include "scheduler/batching/planner.h"
#include "scheduler/drafting/bigram.h"
#include "scheduler/engine.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {

struct ServingResources {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  AnswerFormats answer_formats;
  GenerationDefaults defaults;
  std::shared_ptr<const BigramModel> draft_corpus;    // null without one
  std::shared_ptr<const GrammarEngine> grammars;      // null where there is none
  std::shared_ptr<const TcpListener> draft_listener;  // null where no draft may attach
  Checks checks;
};

// Reads files. Throws Error with one sentence when one of them is not what it should be.
ServingResources load_serving_resources(const RunConfig& config);

// model: the target's. num_kv_blocks: of every target rank.
PlannerConfig planner_config(const RunConfig& config,
                             const RankLayout& layout,
                             const ModelConfig& model,
                             int32_t num_kv_blocks,
                             const ServingResources& resources);

EngineInfo engine_info(const RunConfig& config,
                       const RankLayout& layout,
                       const PlannerConfig& planner);

// What requests can be checked with before anything is loaded.
EngineInfo engine_info(const RunConfig& config);
GenerationDefaults generation_defaults(const RunConfig& config);

}  // namespace outrider
