// See tool_choice.h. Structural tags are xgrammar's.
#include "http/api/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTools = 512;
constexpr size_t kMaxNameBytes = 64;

struct Tool {
  std::string name;
  std::string path;    // of its schema, in the request
  std::string schema;  // of its arguments
  bool is_strict = false;
  int max_whitespace = 8;  // in a row, within the arguments
};

bool is_function_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

Tool read_tool(const JsonFields& tool) {
  if (tool.text("type").value_or("function") != "function")
    throw tool.fault("type", "must be function");
  const std::optional<JsonFields> function = tool.object("function");
  if (!function) throw tool.fault("function", "is missing");
  Tool out;
  out.name = function->needed_text("name");
  if (!is_function_name(out.name)) {
    throw function->fault(
        "name", fmt::format("may hold up to {} letters, digits and _ - .", kMaxNameBytes));
  }
  function->text("description");
  out.path = function->path_of("parameters");
  out.schema =
      function->object("parameters") ? function->dump("parameters") : R"({"type":"object"})";
  out.is_strict = function->boolean("strict").value_or(false);
  return out;
}

std::vector<Tool> read_list(const JsonFields& body, const CallLimits& limits) {
  std::vector<Tool> tools;
  for (const JsonFields& tool : body.objects("tools").value_or(std::vector<JsonFields>{})) {
    tools.push_back(read_tool(tool));
    if (limits.disable_any_whitespace) tools.back().max_whitespace = 1;
  }
  if (tools.size() > kMaxTools)
    throw body.fault("tools", fmt::format("has more than {} tools", kMaxTools));
  return tools;
}

// The parameters that are texts whatever they look like.
std::set<std::string> text_parameters(const std::string& schema) {
  std::set<std::string> names;
  const Json parsed = Json::parse(schema);
  const auto properties = parsed.find("properties");
  if (properties == parsed.end() || !properties->is_object()) return names;
  for (const auto& [name, property] : properties->items()) {
    if (property.is_object() && property.contains("type") && property["type"] == "string")
      names.insert(name);
  }
  return names;
}

enum class Choice : uint8_t { kNone, kAuto, kRequired, kNamed };

// Of a choice that names a function, or several: the others are taken out of the list.
void keep_named(const JsonFields& choice, std::vector<Tool>* tools) {
  std::vector<std::string> names;
  const std::optional<JsonFields> allowed = choice.object("allowed_tools");
  const auto listed = allowed ? allowed->objects("tools") : std::nullopt;
  for (const JsonFields& one : listed ? *listed : std::vector<JsonFields>{choice}) {
    const std::optional<JsonFields> function = one.object("function");
    names.push_back(function ? function->needed_text("name") : one.needed_text("name"));
    if (std::ranges::none_of(*tools, [&](const Tool& tool) { return tool.name == names.back(); })) {
      throw bad_param("tool_choice",
                      fmt::format("'tool_choice' names {}, which is none of 'tools'",
                                  json_quoted(names.back())));
    }
  }
  std::erase_if(
      *tools, [&](const Tool& tool) { return std::ranges::find(names, tool.name) == names.end(); });
}

Choice choice_named(const std::string& name) {
  if (name == "none") return Choice::kNone;
  if (name == "auto") return Choice::kAuto;
  if (name == "required" || name == "any") return Choice::kRequired;
  throw bad_param("tool_choice",
                  "'tool_choice' must be none, auto, required or an object that names a function");
}

// Also takes out of the list what may not be called.
Choice read_choice(const JsonFields& body, std::vector<Tool>* tools) {
  if (!body.has("tool_choice")) return tools->empty() ? Choice::kNone : Choice::kAuto;
  if (body.kind("tool_choice") != JsonKind::kObject) {
    const Choice choice = choice_named(*body.text("tool_choice"));
    if (choice == Choice::kRequired && tools->empty())
      throw body.fault("tool_choice", "needs 'tools'");
    return tools->empty() ? Choice::kNone : choice;
  }
  const JsonFields choice = *body.object("tool_choice");
  if (tools->empty()) throw body.fault("tool_choice", "needs 'tools'");
  keep_named(choice, tools);
  const std::optional<JsonFields> allowed = choice.object("allowed_tools");
  return allowed ? choice_named(allowed->text("mode").value_or("auto")) : Choice::kNamed;
}

Json sequence(Json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }

// '#' stands for a number.
void add_literal(std::string_view text, Json* elements) {
  const size_t number = text.find('#');
  const std::string literal(text.substr(0, number));
  if (!literal.empty()) elements->push_back({{"type", "const_string"}, {"value", literal}});
  if (number == std::string_view::npos) return;
  elements->push_back({{"type", "regex"}, {"pattern", "[0-9]{1,3}"}});
  add_literal(text.substr(number + 1), elements);
}

std::string begin_of(const ToolCallFormat& format, const Tool& tool) {
  return fmt::format("{}{}{}", format.before_name, tool.name, format.before_arguments);
}

// Of whitespace in a row at most `max_whitespace`: 1 is the least that the engine takes.
Json schema_of(const std::string& schema, int max_whitespace, ArgumentStyle style) {
  static constexpr const char* kStyles[] = {"json", "qwen_xml", "glm_xml"};
  return {{"type", "json_schema"},
          {"json_schema", Json::parse(schema)},
          {"style", kStyles[static_cast<size_t>(style)]},
          {"max_whitespace_cnt", max_whitespace}};
}

Json call_of(const ToolCallFormat& format, const Tool& tool) {
  Json elements = Json::array();
  add_literal(begin_of(format, tool), &elements);
  elements.push_back(schema_of(tool.schema, tool.max_whitespace, format.style));
  add_literal(format.end, &elements);
  return sequence(std::move(elements));
}

Json one_of(Json elements) {
  if (elements.size() == 1) return elements.front();
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

// At least one call, or exactly one.
Json calls_of(const ToolCallFormat& format, const std::vector<Tool>& tools, bool parallel) {
  Json calls = Json::array();
  for (const Tool& tool : tools) calls.push_back(call_of(format, tool));
  const Json call = one_of(std::move(calls));
  Json elements = Json::array();
  add_literal(format.section_begin, &elements);
  elements.push_back(call);
  if (parallel) {
    Json further = Json::array();
    add_literal(format.separator, &further);
    further.push_back(call);
    elements.push_back({{"type", "star"}, {"content", sequence(std::move(further))}});
  }
  add_literal(format.section_end, &elements);
  return sequence(std::move(elements));
}

// Calls, or a text answer, which harmony begins with a mark.
Json calls_or(const Json& calls, const AnswerFormats& formats, Json text) {
  Json elements = Json::array();
  if (formats.reasoning != nullptr) add_literal(formats.reasoning->answer_begin, &elements);
  elements.push_back(std::move(text));
  return one_of(Json::array({calls, sequence(std::move(elements))}));
}

// Text without the trigger, and behind it calls that match.
Json text_or_calls(const AnswerFormats& formats, const Json& calls) {
  const std::string trigger(formats.tool_calls->trigger);
  if (trigger.empty() || formats.is_harmony())
    return calls_or(calls, formats, {{"type", "any_text"}});
  const Json text = {{"type", "any_text"}, {"excludes", Json::array({trigger})}};
  return sequence(Json::array({text, {{"type", "optional"}, {"content", calls}}}));
}

Grammar structural_tag(const Json& format) {
  return {GrammarKind::kStructuralTag,
          Json({{"type", "structural_tag"}, {"format", format}}).dump(),
          {},
          {}};
}

}  // namespace

ToolRequest read_tools(const JsonFields& body,
                       const AnswerFormats& formats,
                       const CallLimits& limits,
                       const std::string* response_schema) {
  ToolRequest request;
  request.parallel = body.boolean("parallel_tool_calls").value_or(true);
  std::vector<Tool> tools = read_list(body, limits);
  const Choice choice = read_choice(body, &tools);
  if (choice == Choice::kNone) return request;
  OfferedFunctions functions;
  for (const Tool& tool : tools) functions.emplace(tool.name, text_parameters(tool.schema));
  request.functions = std::make_shared<const OfferedFunctions>(std::move(functions));
  if (choice == Choice::kNamed) request.parallel = false;
  request.is_forced = choice == Choice::kRequired || choice == Choice::kNamed;
  const Json calls = calls_of(*formats.tool_calls, tools, request.parallel);
  if (request.is_forced) {
    request.grammar = structural_tag(calls);
  } else if (response_schema != nullptr) {
    request.grammar = structural_tag(
        calls_or(calls,
                 formats,
                 schema_of(*response_schema, tools.front().max_whitespace, ArgumentStyle::kJson)));
  } else if (std::ranges::any_of(tools, &Tool::is_strict)) {
    request.grammar = structural_tag(text_or_calls(formats, calls));
  } else {
    return request;
  }
  if (request.grammar->text.size() > limits.max_grammar_bytes)
    throw body.fault("tools",
                     fmt::format("make a grammar of more than {} bytes", limits.max_grammar_bytes));
  for (const Tool& tool : tools) request.schemas.emplace_back(tool.path, tool.schema);
  return request;
}

}  // namespace outrider
