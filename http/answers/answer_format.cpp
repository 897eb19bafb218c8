// See answer_format.h.
#include "http/answers/answer_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// The first whose marks a template has is taken; the last has none.
constexpr ToolCallFormat kToolCallFormats[] = {
    {.name = "openai",
     .template_marks = {"<|channel|>", "<|message|>"},
     .trigger = "<|channel|>",
     .opener = "to=functions.",
     .closers = {"<|end|>", "<|start|>", "<|call|>"},
     .before_name = "<|channel|>commentary to=functions.",
     .before_arguments = " <|constrain|>json<|message|>"},
    {.name = "qwen3_coder",
     .template_marks = {"<function=", "<parameter="},
     .trigger = "<tool_call>",
     .opener = "<function=",
     .closers = {"</function>", "</tool_call>"},
     .before_name = "<tool_call>\n<function=",
     .before_arguments = ">\n",
     .end = "\n</function>\n</tool_call>",
     .separator = "\n",
     .style = ArgumentStyle::kQwenXml},
    {.name = "glm45",
     .template_marks = {"<arg_key>", "<tool_call>"},
     .trigger = "<tool_call>",
     .opener = "<tool_call>",
     .closers = {"</tool_call>"},
     .before_name = "<tool_call>",
     .before_arguments = "\n",
     .end = "\n</tool_call>",
     .separator = "\n",
     .style = ArgumentStyle::kGlmXml},
    {.name = "deepseek_v3",
     .template_marks = {"<｜tool▁sep｜>", "```json"},
     .trigger = "<｜tool▁calls▁begin｜>",
     .opener = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .closers = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
     .section_begin = "<｜tool▁calls▁begin｜>",
     .before_name = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .before_arguments = "\n```json\n",
     .end = "\n```<｜tool▁call▁end｜>",
     .separator = "\n",
     .section_end = "<｜tool▁calls▁end｜>"},
    {.name = "deepseek_v31",
     .template_marks = {"<｜tool▁sep｜>", "<｜tool▁calls▁begin｜>"},
     .trigger = "<｜tool▁calls▁begin｜>",
     .opener = "<｜tool▁call▁begin｜>",
     .closers = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
     .section_begin = "<｜tool▁calls▁begin｜>",
     .before_name = "<｜tool▁call▁begin｜>",
     .before_arguments = "<｜tool▁sep｜>",
     .end = "<｜tool▁call▁end｜>",
     .section_end = "<｜tool▁calls▁end｜>"},
    {.name = "kimi_k2",
     .template_marks = {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"},
     .trigger = "<|tool_calls_section_begin|>",
     .opener = "<|tool_call_begin|>functions.",
     .closers = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
     .section_begin = "<|tool_calls_section_begin|>",
     .before_name = "<|tool_call_begin|>functions.",
     .before_arguments = ":#<|tool_call_argument_begin|>",
     .end = "<|tool_call_end|>",
     .section_end = "<|tool_calls_section_end|>"},
    {.name = "mistral",
     .template_marks = {"[TOOL_CALLS]", "[ARGS]"},
     .trigger = "[TOOL_CALLS]",
     .opener = "[TOOL_CALLS]",
     .closers = {},
     .before_name = "[TOOL_CALLS]",
     .before_arguments = "[ARGS]"},
    {.name = "mistral_list",
     .template_marks = {"[TOOL_CALLS]", "[TOOL_CALLS]"},
     .trigger = "[TOOL_CALLS]",
     .opener = "[TOOL_CALLS]",
     .closers = {},
     .section_begin = "[TOOL_CALLS][",
     .before_name = "{\"name\": \"",
     .before_arguments = "\", \"arguments\": ",
     .end = "}",
     .separator = ", ",
     .section_end = "]"},
    {.name = "hermes",
     .template_marks = {"<tool_call>", "</tool_call>"},
     .trigger = "<tool_call>",
     .opener = "<tool_call>",
     .closers = {"</tool_call>"},
     .before_name = "<tool_call>\n{\"name\": \"",
     .before_arguments = "\", \"arguments\": ",
     .end = "}\n</tool_call>",
     .separator = "\n"},
    {.name = "llama3_json",
     .template_marks = {"<|start_header_id|>", "\"parameters\":"},
     .trigger = "",
     .opener = "<|python_tag|>",
     .closers = {},
     .before_name = "{\"name\": \"",
     .before_arguments = "\", \"parameters\": ",
     .end = "}",
     .separator = "; "},
    {.name = "json",
     .template_marks = {},
     .trigger = "",
     .opener = "",
     .closers = {},
     .before_name = "{\"name\": \"",
     .before_arguments = "\", \"arguments\": ",
     .end = "}",
     .separator = "\n"},
};

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

constexpr ReasoningFormat kReasoningFormats[] = {
    {kHarmonyReasoning,
     "<|channel|>analysis<|message|>",
     "<|end|><|start|>assistant",
     "<|channel|>final<|message|>"},
    {"mistral", "[THINK]", "[/THINK]", ""},
    {"deepseek_r1", kThink, kThinkEnd, ""},
    {"qwen3", kThink, kThinkEnd, ""},
    {"glm45", kThink, kThinkEnd, ""},
};

template <typename Row, size_t kCount>
const Row& row_named(const Row (&rows)[kCount], const std::string& name, const char* option) {
  const auto* const row = std::ranges::find(rows, name, &Row::name);
  if (row != std::end(rows)) return *row;
  std::vector<std::string_view> names;
  for (const Row& known : rows) names.push_back(known.name);
  throw Error(fmt::format(
      "{} is '{}', which is none of auto, none, {}", option, name, fmt::join(names, ", ")));
}

const ToolCallFormat& tool_calls_of(std::string_view source) {
  return *std::ranges::find_if(kToolCallFormats, [&](const ToolCallFormat& row) {
    return std::ranges::all_of(row.template_marks, [&](std::string_view mark) {
      return source.find(mark) != std::string_view::npos;
    });
  });
}

const ReasoningFormat* reasoning_of(std::string_view source) {
  for (const ReasoningFormat& row : kReasoningFormats) {
    const std::string_view mark = row.name == kHarmonyReasoning ? "<|channel|>" : row.end;
    if (source.find(mark) != std::string_view::npos) return &row;
  }
  return nullptr;
}

bool contains(std::string_view text, std::string_view part) {
  return !part.empty() && text.find(part) != std::string_view::npos;
}

}  // namespace

AnswerFormats choose_answer_formats(std::string_view source,
                                    const std::string& tool_call_parser,
                                    const std::string& reasoning_parser) {
  AnswerFormats formats;
  formats.shows_tools = contains(source, "tools");
  formats.tool_calls = tool_call_parser == "auto"
                           ? &tool_calls_of(source)
                           : &row_named(kToolCallFormats, tool_call_parser, "tool_call_parser");
  if (reasoning_parser == "auto") {
    formats.reasoning = reasoning_of(source);
  } else if (reasoning_parser != "none") {
    formats.reasoning = &row_named(kReasoningFormats, reasoning_parser, "reasoning_parser");
  }
  return formats;
}

bool is_tool_call_marker(std::string_view special_token) {
  return std::ranges::any_of(kToolCallFormats, [&](const ToolCallFormat& row) {
    return contains(row.section_begin, special_token) || contains(row.before_name, special_token) ||
           contains(row.before_arguments, special_token) || contains(row.end, special_token) ||
           contains(row.section_end, special_token);
  });
}

bool is_shown(const AnswerFormats& formats, bool looks_for_calls, std::string_view special_token) {
  const ToolCallFormat& calls = *formats.tool_calls;
  const bool in_calls =
      (looks_for_calls || formats.is_harmony()) &&
      (contains(calls.trigger, special_token) || contains(calls.opener, special_token) ||
       contains(calls.before_arguments, special_token) ||
       std::ranges::any_of(calls.closers, [&](std::string_view closer) {
         return contains(closer, special_token);
       }));
  const ReasoningFormat* reasoning = formats.reasoning;
  return in_calls || (reasoning != nullptr && (contains(reasoning->begin, special_token) ||
                                               contains(reasoning->end, special_token)));
}

}  // namespace outrider
