// See batch_lines.h.
#include "http/batches/batch_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "http/api/json_fields.h"
#include "http/dialects/responses.h"
#include "http/wire/api_error.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr size_t kMaxDepth = 66;  // what a request may have, and the line around it

// What would fail whenever it is asked fails before anything runs.
int count_requests(const BatchLine& line, const CallContext& context) {
  const CompletionCall call =
      line.url == "/v1/completions" ? read_completion_call(line.body, context)
      : line.url == "/v1/responses"
          ? read_chat_call(read_responses_call(line.body, context.limits.strict_params).chat_body,
                           context)
          : read_chat_call(line.body, context);
  return call.num_choices * static_cast<int>(std::max<size_t>(1, call.prompts.size()));
}

void check_url(const std::string& url, const std::string& only) {
  if (!is_batch_endpoint(url)) {
    throw ApiError(
        400,
        fmt::format("the url '{}' is not /v1/completions, /v1/chat/completions or /v1/responses",
                    url),
        "url",
        "invalid_url");
  }
  if (!only.empty() && url != only) {
    throw ApiError(400,
                   fmt::format("the url '{}' is not the batch's endpoint, {}", url, only),
                   "url",
                   "mismatched_endpoint");
  }
}

BatchLine read_line(const std::string& text,
                    int number,
                    const CallContext& context,
                    const std::string& only_url) {
  JsonLimits limits = kBodyLimits;
  limits.max_depth = kMaxDepth;
  const JsonFields json = JsonFields::parse(text, limits);
  BatchLine line;
  line.number = number;
  line.custom_id = json.needed_text("custom_id");
  line.url = json.needed_text("url");
  if (json.text("method").value_or("POST") != "POST")
    throw ApiError(400, "'method' must be POST", "method", "invalid_method");
  check_url(line.url, only_url);
  const std::optional<JsonFields> body = json.object("body");
  if (!body) throw json.fault("body", "is missing");
  if (body->boolean("stream").value_or(false)) throw body->fault("stream", "must be false");
  line.body = body->dump();
  line.num_requests = count_requests(line, context);
  return line;
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\v\f") == std::string::npos;
}

}  // namespace

bool is_batch_endpoint(const std::string& url) {
  return url == "/v1/completions" || url == "/v1/chat/completions" || url == "/v1/responses";
}

BatchInput read_batch_input(const std::string& path,
                            const CallContext& context,
                            const BatchInputRules& rules) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(fmt::format("cannot read {}", path));
  BatchInput input;
  std::set<std::string> ids;
  std::string text;
  for (int number = 1; input.faults.size() < rules.max_faults && std::getline(file, text);
       ++number) {
    if (is_blank(text)) continue;
    try {
      if (input.lines.size() >= rules.max_lines) {
        throw ApiError(
            400, fmt::format("more than {} lines", rules.max_lines), {}, "too_many_lines");
      }
      BatchLine line = read_line(text, number, context, rules.url);
      if (!ids.insert(line.custom_id).second) {
        throw ApiError(400,
                       fmt::format("custom_id '{}' was used before", line.custom_id),
                       "custom_id",
                       "duplicate_custom_id");
      }
      input.lines.push_back(std::move(line));
    } catch (const ApiError& error) {
      input.faults.push_back({number, error.what(), error.param(), error.code()});
      if (error.code() == "too_many_lines") break;
    } catch (const Error& error) {
      input.faults.push_back({number, error.what(), {}, {}});
    }
  }
  return input;
}

std::vector<BatchLine> read_batch_lines(const std::string& path, const CallContext& context) {
  BatchInput input = read_batch_input(path, context, {});
  if (!input.faults.empty()) {
    const BatchLineFault& fault = input.faults.front();
    throw Error(fmt::format("{}: line {}: {}", path, fault.number, fault.message));
  }
  return std::move(input.lines);
}

}  // namespace outrider
