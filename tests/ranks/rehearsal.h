// A list of requests, each at its time, through a whole job in virtual time: what came when, to the
// nanosecond and the same on every run. For performance tests and `bench sim`; with simulated
// models it rehearses minutes of a large model in moments.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/ranks/job/job.h"

namespace outrider {

struct TimedRequest {
  std::vector<int32_t> prompt;
  SamplingParams params;  // noise_seed 0: the seed, or one made from the request's index
  double at_s = 0;        // since the rehearsal's start
  int32_t priority = 0;
};

// What one round gave a request.
struct TimedEvent {
  double at_s = 0;
  int32_t num_tokens = 0;
  int32_t num_drafted = 0;
  int32_t num_accepted = 0;
  bool operator==(const TimedEvent&) const = default;
};

struct TimedAnswer {
  std::vector<int32_t> tokens;
  std::vector<TokenOrigin> origins;
  std::vector<TimedEvent> events;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
  SpeculationStats stats;
  double at_s = 0;           // when it was submitted
  double first_token_s = 0;  // since the rehearsal's start
  double done_s = 0;
};

// All the requests, and returns when the last is answered. Called by a front end in virtual time.
// Throws Error when a request is refused.
std::vector<TimedAnswer> play_requests(const FrontEndContext& context,
                                       const std::vector<TimedRequest>& requests);

struct Rehearsal {
  std::vector<TimedAnswer> answers;  // in the order of the requests
  double seconds = 0;                // from the start to the last answer
  uint64_t history = 0;              // of the whole job (VirtualClock::history)
  RoundTimes round_times;
  // The process's counters, gauges and sums by name, without namespace; samples of one name added.
  std::map<std::string, double> metrics;
};

// As a job of its own in this process, with a virtual clock of its own. Throws Error as run_job
// does.
Rehearsal rehearse(const RunConfig& config,
                   const std::vector<TimedRequest>& requests,
                   const InProcessLink& link = {});

}  // namespace outrider
