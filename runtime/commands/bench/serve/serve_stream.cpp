// See serve_stream.h.
#include "runtime/commands/bench/serve/serve_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxErrorBytes = 300;

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

std::string one_short_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (text.size() > kMaxErrorBytes) text = text.substr(0, kMaxErrorBytes) + "...";
  return text;
}

}  // namespace

bool CompletionStream::receive(double time_s, std::string_view bytes) {
  bool fits = true;
  if (record_->http_status == 200) {
    fits = events_.take(bytes, [&](std::string_view data) {
      take_event(time_s, data);
      return record_->failure.empty();
    });
  } else {
    error_body_.append(bytes);
    fits = error_body_.size() <= EventReader::kMaxLineBytes;
  }
  if (!fits) {
    const bool is_stream = record_->http_status == 200;
    fail(is_stream ? "not a stream" : fmt::format("http {}", record_->http_status),
         fmt::format("an answer's line is larger than {} bytes", EventReader::kMaxLineBytes));
  }
  return record_->failure.empty();
}

void CompletionStream::take_event(double time_s, std::string_view data) {
  if (done_) return;
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object())
    return fail("not a stream", "an event is not JSON: " + std::string(data.substr(0, 80)));
  if (event.contains("error") && !event["error"].is_null())
    return fail("error event", error_message_of(data));
  const Json& usage = member(event, "usage");
  const int64_t used = count_of(usage, "completion_tokens");
  if (used >= 0) record_->usage_tokens = used;
  if (count_of(usage, "prompt_tokens") >= 0)
    record_->prompt_tokens = count_of(usage, "prompt_tokens");
  const Json& choices = member(event, "choices");
  if (!choices.is_array() || choices.empty()) return;
  const Json& choice = choices.front();
  record_->last_choice_s = time_s;
  if (has_text(choice, "finish_reason"))
    record_->finish_reason = member(choice, "finish_reason").get<std::string>();
  int64_t num_tokens = has_output(choice) ? 1 : 0;
  if (used >= 0 && (has_running_usage_ || record_->chunks.empty())) {
    // Usage that comes only with the last chunk says nothing of the others.
    has_running_usage_ = true;
    num_tokens = std::max<int64_t>(used - running_tokens_, 0);
    running_tokens_ = used;
  }
  if (num_tokens > 0) record_->chunks.push_back({time_s, static_cast<int32_t>(num_tokens)});
}

void CompletionStream::fail(const std::string& failure, const std::string& error) {
  if (!record_->failure.empty()) return;
  record_->failure = failure;
  record_->error = one_short_line(error);
}

void CompletionStream::finish(double time_s) {
  record_->end_s = time_s;
  if (!record_->failure.empty()) return;
  if (record_->http_status != 200)
    return fail(fmt::format("http {}", record_->http_status), error_message_of(error_body_));
  // Some servers leave [DONE] out, and some the reason; without both the end was too early.
  if (done_ || !record_->finish_reason.empty()) {
    if (record_->last_choice_s < 0) fail("broken stream", "the answer had no choice");
    return;
  }
  if (record_->last_choice_s < 0)
    return fail("not a stream", "the answer had no events with choices");
  fail("broken stream", "the stream ended before the answer was complete");
}

}  // namespace outrider
