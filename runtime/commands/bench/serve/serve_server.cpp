// See serve_server.h.
#include "runtime/commands/bench/serve/serve_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/commands/bench/serve/serve_stream.h"
#include "runtime/ranks/signals.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxBytes = 16 << 20;
constexpr HttpClient::Timeouts kPatience = {std::chrono::milliseconds(5000),
                                            std::chrono::milliseconds(30000)};
constexpr auto kRetryInterval = std::chrono::milliseconds(100);

std::string state_of(const HttpClient::Answer& answer) {
  switch (answer.outcome) {
    case HttpOutcome::kNoConnection:
      return "no connection";
    case HttpOutcome::kTimeout:
      return "no answer";
    case HttpOutcome::kBroken:
      return "no HTTP answer";
    default:
      return fmt::format("HTTP {}", answer.status);
  }
}

}  // namespace

void wait_until_ready(const ServeTarget& target, int32_t timeout_s) {
  const auto end = Clock::now() + std::chrono::seconds(timeout_s);
  HttpClient client(target.address, kPatience);
  while (true) {
    HttpClient::Answer answer = client.get("/health", target.headers, kMaxBytes);
    if (answer.status == 404) answer = client.get("/v1/models", target.headers, kMaxBytes);
    if (answer.status == 200) return;
    if (Clock::now() >= end)
      throw Error(fmt::format("the server at {} was not ready within {} s: {}",
                              target.address.origin,
                              timeout_s,
                              state_of(answer)));
    if (wait_stop_signal(kRetryInterval)) throw Error("stopped by a signal");
  }
}

std::string first_model(const ServeTarget& target) {
  HttpClient client(target.address, kPatience);
  const HttpClient::Answer answer = client.get("/v1/models", target.headers, kMaxBytes);
  const Json json = Json::parse(answer.body, nullptr, false);
  if (answer.status == 200 && json.is_object() && json.contains("data") &&
      json["data"].is_array() && !json["data"].empty() && json["data"][0].is_object() &&
      json["data"][0].contains("id") && json["data"][0]["id"].is_string()) {
    return json["data"][0]["id"].get<std::string>();
  }
  throw Error(fmt::format("{}/v1/models names no model ({}): give --model",
                          target.address.origin + target.address.path_prefix,
                          state_of(answer)));
}

SpeculationCount speculation_counters(const ServeTarget& target) {
  HttpClient client(target.address, kPatience);
  const HttpClient::Answer answer = client.get("/metrics", target.headers, kMaxBytes);
  return answer.status == 200 ? parse_speculation_metrics(answer.body) : SpeculationCount{};
}

void add_difference(const SpeculationCount& before,
                    const SpeculationCount& after,
                    SpeculationCount* sum) {
  if (!before.known() || !after.known()) return;
  const auto add = [](int64_t first, int64_t last, int64_t* total) {
    if (first >= 0 && last >= first) *total = std::max<int64_t>(*total, 0) + last - first;
  };
  add(before.num_drafts, after.num_drafts, &sum->num_drafts);
  add(before.num_draft_tokens, after.num_draft_tokens, &sum->num_draft_tokens);
  add(before.num_accepted_tokens, after.num_accepted_tokens, &sum->num_accepted_tokens);
}

}  // namespace outrider
