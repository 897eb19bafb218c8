// The server under test: what is asked of it before and after a run of `bench serve`, and the run,
// which sends each request when its time has come, whether or not earlier ones have been answered.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/wire/http_client.h"
#include "runtime/commands/bench/serve/serve_stream.h"

namespace outrider {

struct ServeTarget {
  ServerAddress address;
  std::string endpoint;  // "/v1/completions"
  std::vector<std::pair<std::string, std::string>> headers;
  std::chrono::milliseconds request_timeout{600000};  // from sending to the last byte
};

// Waits for 200 of /health, or of /v1/models where there is no /health. Throws Error after the
// time, or at once when a signal wants the program to stop.
void wait_until_ready(const ServeTarget& target, int32_t timeout_s);

struct AskedModel {
  std::string name;
  int32_t max_model_len = 0;  // 0 = the server does not say
};

// Of /v1/models the model of that name, or the first when the name is empty. Throws Error when the
// name is empty and there is none.
AskedModel asked_model(const ServeTarget& target, const std::string& name);

// A server's counters vllm:spec_decode_num_*_total of /metrics, summed over its engines, under what
// stands for the star: "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos 0".
using SpeculationCounters = std::map<std::string, double>;

SpeculationCounters parse_speculation_metrics(std::string_view text);
SpeculationCounters speculation_counters(const ServeTarget& target);  // empty: there are none

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
