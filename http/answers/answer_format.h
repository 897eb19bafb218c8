// How models write reasoning and tool calls into their text: one row a family, as its chat template
// shows them to the model. Read by the parser of answers, and by what forces a call.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace outrider {

enum class ArgumentStyle : uint8_t { kJson, kQwenXml, kGlmXml };

struct ToolCallFormat {
  std::string_view name;                           // of --tool-call-parser, vLLM's where it has one
  std::array<std::string_view, 2> template_marks;  // a chat template with both writes calls so
  // For reading a text. trigger: what comes before the first call; empty: the answer itself is one.
  // opener: what comes before each; after it stands a name, or an object that has one. closers:
  // what may come after one.
  std::string_view trigger;
  std::string_view opener;
  std::array<std::string_view, 3> closers;
  // For forcing one: section_begin, calls with the separator between them, section_end. A call is
  // before_name, the name, before_arguments, the arguments, end; '#' stands for a number.
  std::string_view section_begin;
  std::string_view before_name;
  std::string_view before_arguments;
  std::string_view end;
  std::string_view separator;
  std::string_view section_end;
  ArgumentStyle style = ArgumentStyle::kJson;

  // The call is a JSON object with the members name and arguments (or parameters).
  bool is_object() const { return before_name.ends_with("{\"name\": \""); }
};

struct ReasoningFormat {
  std::string_view name;  // of --reasoning-parser, vLLM's
  std::string_view begin;
  std::string_view end;
  std::string_view answer_begin;  // what a text answer begins with behind it
};

// gpt-oss writes everything into channels.
inline constexpr std::string_view kHarmonyReasoning = "openai_gptoss";

struct AnswerFormats {
  const ToolCallFormat* tool_calls = nullptr;  // never null once chosen
  const ReasoningFormat* reasoning = nullptr;  // null: the model writes none
  bool shows_tools = false;                    // the template has a place for tools

  bool is_harmony() const { return reasoning != nullptr && reasoning->name == kHarmonyReasoning; }
};

// template_source: of all templates of the model. The parsers' names: auto (by the template), none,
// or a row's. Throws Error that lists the names for another one.
AnswerFormats choose_answer_formats(std::string_view template_source,
                                    const std::string& tool_call_parser,
                                    const std::string& reasoning_parser);

// Whether a forced call may need this special token, in any format: the grammar engine must know
// it by its text then.
bool is_tool_call_marker(std::string_view special_token);

// Whether the parser of these formats must see this special token in the text.
bool is_shown(const AnswerFormats& formats, bool looks_for_calls, std::string_view special_token);

}  // namespace outrider
