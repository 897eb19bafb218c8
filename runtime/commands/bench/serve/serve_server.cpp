// See serve_server.h.
#include "runtime/commands/bench/serve/serve_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/files/json_depth.h"
#include "runtime/ranks/job/signals.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kRetryInterval = std::chrono::milliseconds(100);
constexpr size_t kMaxBytes = 16 << 20;
constexpr HttpClient::Timeouts kPatience = {std::chrono::milliseconds(5000),
                                            std::chrono::milliseconds(30000)};

std::string state_of(const HttpClient::Answer& answer) {
  if (answer.outcome == HttpOutcome::kNoConnection) return "no connection";
  if (answer.outcome == HttpOutcome::kTimeout) return "no answer";
  if (answer.outcome == HttpOutcome::kBroken) return "no HTTP answer";
  return fmt::format("HTTP {}", answer.status);
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

AskedModel asked_model(const ServeTarget& target, const std::string& name) {
  HttpClient client(target.address, kPatience);
  const HttpClient::Answer answer = client.get("/v1/models", target.headers, kMaxBytes);
  const bool is_deep = json_nests_deeper_than(answer.body, kMaxJsonDepth);
  const Json json = is_deep ? Json() : Json::parse(answer.body, nullptr, false);
  for (const Json& entry : json.is_object() ? json.value("data", Json()) : Json()) {
    const Json id = entry.is_object() ? entry.value("id", Json()) : Json();
    if (!id.is_string() || !(name.empty() || id == name)) continue;
    const Json length = entry.value("max_model_len", Json());
    const int64_t tokens = length.is_number_integer() ? length.get<int64_t>() : 0;
    return {id.get<std::string>(), static_cast<int32_t>(std::clamp<int64_t>(tokens, 0, INT32_MAX))};
  }
  if (!name.empty()) return {.name = name};
  throw Error(fmt::format("{}/v1/models names no model ({}): give --model",
                          target.address.origin + target.address.path_prefix,
                          state_of(answer)));
}

SpeculationCounters parse_speculation_metrics(std::string_view text) {
  constexpr std::string_view kFamily = "vllm:spec_decode_num_";
  constexpr std::string_view kTotal = "_total";
  constexpr std::string_view kPosition = "position=\"";
  SpeculationCounters sums;
  while (!text.empty()) {  // "family{labels} value" or "family value"
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    if (!name.starts_with(kFamily) || !name.ends_with(kTotal)) continue;
    std::string key(name.substr(kFamily.size(), name.size() - kFamily.size() - kTotal.size()));
    if (const size_t at = line.find(kPosition); at != std::string_view::npos) {
      const std::string_view rest = line.substr(at + kPosition.size());
      key += fmt::format(" {}", rest.substr(0, rest.find('"')));
    }
    const std::string_view number = line.substr(line.rfind(' ') + 1);
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc())
      sums[key] += value;
  }
  return sums;
}

SpeculationCounters speculation_counters(const ServeTarget& target) {
  HttpClient client(target.address, kPatience);
  const HttpClient::Answer answer = client.get("/metrics", target.headers, kMaxBytes);
  return answer.status == 200 ? parse_speculation_metrics(answer.body) : SpeculationCounters{};
}

}  // namespace outrider
