// Sends the requests of one run of `bench serve` when their time has come, whether or not earlier
// ones have been answered, and records what came back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/commands/bench/serve/serve_server.h"
#include "runtime/commands/bench/serve/serve_stream.h"

namespace outrider {

struct PlannedRequest {
  double scheduled_s = 0;  // ascending
  std::string body;
  int32_t input_len = 0;
  int32_t output_len = 0;
};

// Called about twice a second on the thread that started the run; must not throw. False: send no
// more, only wait for what is in flight.
using ProgressFunction = std::function<bool(int32_t num_done)>;

// Records of the requests that were sent, in their order: those whose turn had not come when
// progress wanted no more are left out. max_concurrency: requests in flight at most, each a thread
// with a connection of its own; 0 = 4096, the most there can be. progress may be null. Never throws
// for what the server does; throws Error when not one thread can be made.
std::vector<RequestRecord> run_requests(const ServeTarget& target,
                                        const std::vector<PlannedRequest>& requests,
                                        int32_t max_concurrency,
                                        const ProgressFunction& progress);

}  // namespace outrider
