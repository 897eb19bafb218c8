// The server under test: how to speak to it, and what is asked of it beside the requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/wire/http_client.h"

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
// Empty when there are none.
SpeculationCounters speculation_counters(const ServeTarget& target);

}  // namespace outrider
