// See serve_stream.h.
#include "runtime/commands/bench/serve/serve_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxEventBytes = 16 << 20;
constexpr size_t kMaxErrorBytes = 300;
constexpr int64_t SpeculationCount::*kCounts[] = {&SpeculationCount::num_drafts,
                                                  &SpeculationCount::num_draft_tokens,
                                                  &SpeculationCount::num_accepted_tokens};

// A member that is an object, else null.
const Json& member(const Json& json, const char* name) {
  static const Json kNull;
  if (!json.is_object()) return kNull;
  const auto found = json.find(name);
  return found == json.end() ? kNull : *found;
}

int64_t count_of(const Json& json, const char* name) {
  const Json& value = member(json, name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX) return -1;
  return value.get<int64_t>();
}

bool has_text(const Json& json, const char* name) {
  const Json& value = member(json, name);
  return value.is_string() && !value.get_ref<const std::string&>().empty();
}

bool has_output(const Json& choice) {
  const Json& delta = member(choice, "delta");
  return has_text(choice, "text") || has_text(delta, "content") ||
         has_text(delta, "reasoning_content") || has_text(delta, "reasoning");
}

// The sentence of an error in any of the shapes servers have: {"error": {"message"}},
// {"error": "..."}, {"message"}, {"detail"}.
std::string message_of(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  for (const Json& place : {member(json, "error"), json}) {
    if (place.is_string()) return place.get<std::string>();
    for (const char* name : {"message", "detail"}) {
      if (has_text(place, name)) return member(place, name).get<std::string>();
    }
  }
  return body;
}

std::string one_short_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (text.size() > kMaxErrorBytes) text = text.substr(0, kMaxErrorBytes) + "...";
  return text;
}

void take_speculation(const Json& event, SpeculationCount* count) {
  const Json& metrics = member(member(event, "metrics"), "speculative_decoding");
  if (metrics.is_object()) {
    *count = {count_of(metrics, "num_spec_steps"),
              count_of(metrics, "num_draft_tokens"),
              count_of(metrics, "num_accepted_draft_tokens")};
  }
  const Json& timings = member(event, "timings");  // llama.cpp
  if (timings.is_object() && timings.contains("draft_n")) {
    *count = {-1, count_of(timings, "draft_n"), count_of(timings, "draft_n_accepted")};
  }
}

}  // namespace

std::string failure_name(const RequestRecord& record) {
  if (record.failure == ServeFailure::kHttpStatus)
    return fmt::format("http {}", record.http_status);
  constexpr const char* kNames[] = {
      "none", "connect", "timeout", "http", "error event", "broken stream", "not a stream"};
  return kNames[static_cast<size_t>(record.failure)];
}

void SpeculationCount::add(const SpeculationCount& other) {
  for (int64_t SpeculationCount::*count : kCounts) {
    if (other.*count >= 0) this->*count = std::max<int64_t>(this->*count, 0) + other.*count;
  }
}

SpeculationCount difference(const SpeculationCount& before, const SpeculationCount& after) {
  SpeculationCount result;
  if (!before.known() || !after.known()) return result;
  for (int64_t SpeculationCount::*count : kCounts) {
    if (before.*count >= 0 && after.*count >= before.*count)
      result.*count = after.*count - before.*count;
  }
  return result;
}

void EventReader::receive(std::string_view bytes, std::vector<std::string>* events) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (line_.size() + data_.size() > kMaxEventBytes)
      throw Error(fmt::format("an event is larger than {} bytes", kMaxEventBytes));
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    take_line(events);
  }
}

void EventReader::take_line(std::vector<std::string>* events) {
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  if (line_.empty()) {
    if (has_data_) events->push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
    return;
  }
  std::string_view line = line_;
  if (line.starts_with("data:")) {
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
}

void CompletionStream::begin(int status) { record_->http_status = status; }

bool CompletionStream::receive(double time_s, std::string_view bytes) {
  if (record_->failure != ServeFailure::kNone) return false;
  if (record_->http_status != 200) {
    error_body_.append(
        bytes.substr(0, kMaxEventBytes - std::min(kMaxEventBytes, error_body_.size())));
    return true;
  }
  std::vector<std::string> events;
  try {
    events_.receive(bytes, &events);
  } catch (const Error& error) {
    fail(ServeFailure::kNotAStream, error.what());
  }
  for (const std::string& data : events) {
    if (!done_ && record_->failure == ServeFailure::kNone) take_event(time_s, data);
  }
  return record_->failure == ServeFailure::kNone;
}

void CompletionStream::take_event(double time_s, const std::string& data) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object())
    return fail(ServeFailure::kNotAStream, "an event is not JSON: " + data.substr(0, 80));
  if (event.contains("error") && !event["error"].is_null())
    return fail(ServeFailure::kErrorEvent, message_of(data));
  const Json& usage = member(event, "usage");
  const int64_t used = count_of(usage, "completion_tokens");
  if (used >= 0) record_->usage_tokens = used;
  if (count_of(usage, "prompt_tokens") >= 0)
    record_->prompt_tokens = count_of(usage, "prompt_tokens");
  take_speculation(event, &record_->speculation);
  const Json& choices = member(event, "choices");
  if (!choices.is_array() || choices.empty()) return;
  const Json& choice = choices.front();
  record_->last_choice_s = time_s;
  if (has_text(choice, "finish_reason"))
    record_->finish_reason = member(choice, "finish_reason").get<std::string>();
  int64_t num_tokens = has_output(choice) ? 1 : 0;
  const Json& ids = member(choice, "token_ids");
  if (ids.is_array()) {
    num_tokens = static_cast<int64_t>(ids.size());
    record_->count_by = ChunkCount::kTokenIds;
  } else if (used >= 0 && (has_running_usage_ || record_->chunks.empty())) {
    // Usage that comes only with the last chunk says nothing of the others.
    has_running_usage_ = true;
    num_tokens = std::max<int64_t>(used - running_tokens_, 0);
    running_tokens_ = used;
    record_->count_by = ChunkCount::kRunningUsage;
  }
  if (num_tokens > 0) record_->chunks.push_back({time_s, static_cast<int32_t>(num_tokens)});
}

void CompletionStream::fail(ServeFailure failure, const std::string& error) {
  if (record_->failure != ServeFailure::kNone) return;
  record_->failure = failure;
  record_->error = one_short_line(error);
}

void CompletionStream::finish(double time_s) {
  record_->end_s = time_s;
  if (record_->failure != ServeFailure::kNone) return;
  if (record_->http_status != 200) return fail(ServeFailure::kHttpStatus, message_of(error_body_));
  // Some servers leave [DONE] out, and some the reason; without both the end was too early.
  if (done_ || !record_->finish_reason.empty()) {
    if (record_->last_choice_s < 0) fail(ServeFailure::kBrokenStream, "the answer had no choice");
    return;
  }
  if (record_->last_choice_s < 0)
    return fail(ServeFailure::kNotAStream, "the answer had no events with choices");
  fail(ServeFailure::kBrokenStream, "the stream ended before the answer was complete");
}

SpeculationCount parse_speculation_metrics(std::string_view text) {
  SpeculationCount sums;
  const std::pair<std::string_view, int64_t*> families[] = {
      {"vllm:spec_decode_num_drafts_total", &sums.num_drafts},
      {"vllm:spec_decode_num_draft_tokens_total", &sums.num_draft_tokens},
      {"vllm:spec_decode_num_accepted_tokens_total", &sums.num_accepted_tokens}};
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    for (const auto& [family, sum] : families) {  // "family{labels} value" or "family value"
      if (!line.starts_with(family)) continue;
      const std::string_view rest = line.substr(family.size());
      if (!rest.starts_with('{') && !rest.starts_with(' ')) continue;
      const std::string_view number = rest.substr(rest.rfind(' ') + 1);
      double value = 0;
      const auto code = std::from_chars(number.data(), number.data() + number.size(), value).ec;
      if (code == std::errc() && value >= 0 && value < 1e15)
        *sum = std::max<int64_t>(*sum, 0) + static_cast<int64_t>(value);
    }
  }
  return sums;
}

}  // namespace outrider
