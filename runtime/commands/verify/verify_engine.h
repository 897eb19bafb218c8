// Asking the running engine for many answers, for `outrider verify`. On the front end's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/base/settings/run_config.h"
#include "scheduler/engine.h"

namespace outrider {

struct Question {
  std::vector<int32_t> prompt;
  SamplingParams params;  // with noise_seed
};

struct EngineAnswer {
  std::vector<int32_t> tokens;
  std::vector<TokenOrigin> origins;            // one per token
  std::vector<TokenLogprobs> logprobs;         // one per token when asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // of prompt[1..] when asked for
  SpeculationStats stats;
};

// Answers to questions 0 .. num_questions - 1, in order; at most num_in_flight at once. Throws
// Error when one is refused or fails, and when a signal asks to stop.
void ask_engine(Engine& engine,
                size_t num_questions,
                size_t num_in_flight,
                const std::function<Question(size_t)>& question,
                const std::function<void(size_t, const EngineAnswer&)>& take);

// As many as keep every slot busy, within what the queue takes.
size_t requests_in_flight(const RunConfig& config);

// Adds up what became of draft tokens and bonus draft tokens.
struct DraftCounts {
  int64_t num_examined = 0;  // accepted or rejected
  int64_t num_accepted = 0;
  int64_t num_bonus_drafts = 0;  // of the examined ones
  void add(const EngineAnswer& answer);
};

}  // namespace outrider
