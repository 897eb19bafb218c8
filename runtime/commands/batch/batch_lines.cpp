// See batch_lines.h.
#include "runtime/commands/batch/batch_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "http/api/json_fields.h"
#include "http/dialects/responses.h"
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

BatchLine read_line(const std::string& text, int number, const CallContext& context) {
  const JsonFields json = JsonFields::parse(text, {.max_depth = kMaxDepth});
  BatchLine line;
  line.number = number;
  line.custom_id = json.needed_text("custom_id");
  line.url = json.needed_text("url");
  if (json.text("method").value_or("POST") != "POST") throw Error("'method' must be POST");
  if (line.url != "/v1/completions" && line.url != "/v1/chat/completions" &&
      line.url != "/v1/responses") {
    throw Error(fmt::format(
        "the url '{}' is not /v1/completions, /v1/chat/completions or /v1/responses", line.url));
  }
  const std::optional<JsonFields> body = json.object("body");
  if (!body) throw Error("'body' is missing");
  if (body->boolean("stream").value_or(false)) throw Error("'body.stream' must be false");
  line.body = body->dump();
  line.num_requests = count_requests(line, context);
  return line;
}

}  // namespace

std::vector<BatchLine> read_batch_lines(const std::string& path, const CallContext& context) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(fmt::format("cannot read {}", path));
  std::vector<BatchLine> lines;
  std::set<std::string> ids;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r\v\f") == std::string::npos) continue;
    try {
      lines.push_back(read_line(text, number, context));
    } catch (const std::exception& error) {
      throw Error(fmt::format("{}: line {}: {}", path, number, error.what()));
    }
    const std::string& id = lines.back().custom_id;
    if (!ids.insert(id).second)
      throw Error(fmt::format("{}: line {}: custom_id '{}' was used before", path, number, id));
  }
  return lines;
}

}  // namespace outrider
