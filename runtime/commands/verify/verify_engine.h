// Asking the running engine for many answers, for `outrider verify`. On the front end's thread.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/settings/run_config.h"
#include "runtime/commands/bench/bench_requests.h"

namespace outrider {

// Answers to questions 0 .. num_questions - 1, in order; at most num_in_flight at once. A question
// is a prompt and params with noise_seed. Throws as the functions of bench_requests.h.
void ask_engine(const FrontEndContext& context,
                size_t num_questions,
                size_t num_in_flight,
                const std::function<Request(size_t)>& question,
                const std::function<void(size_t, const BenchAnswer&)>& take);

// As many as keep every slot busy, within what the queue takes.
size_t requests_in_flight(const RunConfig& config);

// Adds up what became of draft tokens and bonus draft tokens.
struct DraftCounts {
  int64_t num_examined = 0;  // accepted or rejected
  int64_t num_accepted = 0;
  int64_t num_bonus_drafts = 0;  // of the examined ones
  void add(const BenchAnswer& answer);
};

}  // namespace outrider
