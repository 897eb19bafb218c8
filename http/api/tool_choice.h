// The tools that a request offers, and whether its answer must call one: tools, tool_choice and
// parallel_tool_calls of chat completions. A call that must be is forced by a structural tag in the
// model's own format, so that it cannot fail.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/answers/answer_parser.h"
#include "http/api/json_fields.h"
#include "http/wire/options.h"
#include "scheduler/sampling_params.h"

namespace outrider {

struct ToolRequest {
  std::shared_ptr<const OfferedFunctions> functions;  // null: the answer's calls are not looked for
  bool parallel = true;
  bool is_forced = false;
  // What the answer must match: a call, or with strict tools text whose calls match their schemas.
  std::optional<Grammar> grammar;
  // Of the grammar: (field, JSON schema), to name what they leave out.
  std::vector<std::pair<std::string, std::string>> schemas;
};

// Throws ApiError naming the field. response_schema: the JSON schema of the text, where one is
// asked for, or null; a call may then stand in its place.
ToolRequest read_tools(const JsonFields& body,
                       const AnswerFormats& formats,
                       const CallLimits& limits,
                       const std::string* response_schema);

}  // namespace outrider
