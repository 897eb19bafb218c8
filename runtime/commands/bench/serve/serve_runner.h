// Sends the requests of one run of `bench serve` when their time has come, whether or not earlier
// ones have been answered, and records what came back. One thread sends the clock's signals; each
// request in flight has a thread with a connection of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "http/wire/http_client.h"
#include "runtime/commands/bench/serve/serve_record.h"

namespace outrider {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The server under test and how to speak to it.
struct ServeTarget {
  ServerAddress address;
  std::string endpoint;  // "/v1/completions"
  HttpHeaders headers;
  std::chrono::milliseconds request_timeout{600000};  // from sending to the last byte
};

struct PlannedRequest {
  double scheduled_s = 0;  // ascending
  std::string body;
  int32_t input_len = 0;
  int32_t output_len = 0;
};

struct RunProgress {
  int32_t num_total = 0;
  int32_t num_done = 0;
  int32_t num_failed = 0;
  int32_t num_in_flight = 0;
  double elapsed_s = 0;
};

// Threads, and so connections, that a run takes at most; beyond it requests wait as they do for
// max_concurrency, and their waiting is recorded the same way.
constexpr int32_t kMostInFlight = 4096;

struct RunLimits {
  int32_t max_concurrency = 0;  // requests in flight at most; 0 = no limit of its own
  double send_until_s = std::numeric_limits<double>::infinity();
};

// Called about twice a second on the thread that runs the requests; must not throw. False: send no
// more, only wait for what is in flight.
using ProgressFunction = std::function<bool(const RunProgress&)>;

// Records of the requests that were sent, in their order: those whose turn had not come at
// send_until_s, or when progress wanted no more, are left out. progress may be null. Never throws
// for what the server does.
std::vector<RequestRecord> run_requests(const ServeTarget& target,
                                        const std::vector<PlannedRequest>& requests,
                                        const RunLimits& limits,
                                        const ProgressFunction& progress);

}  // namespace outrider
