// See chat_messages.h.
#include "http/api/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

constexpr size_t kMaxKwargs = 32;
constexpr size_t kMaxKwargBytes = 256;

std::string checked_role(const JsonFields& message) {
  constexpr std::array<std::string_view, 6> kRoles = {
      "system", "developer", "user", "assistant", "tool", "function"};
  const std::optional<std::string> role = message.text("role");
  if (!role || std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end())
    throw message.fault("role", "must be system, developer, user, assistant or tool");
  return *role == "developer" ? "system" : *role;
}

// Of a text part; nothing for other parts. The last three are those of other APIs' histories.
std::optional<std::string> text_of_part(const JsonFields& part) {
  constexpr std::pair<std::string_view, const char*> kForms[] = {
      {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
  const std::string type = part.text("type").value_or("");
  for (const auto& [name, member] : kForms) {
    if (type == name) return part.text(member);
  }
  return std::nullopt;
}

std::string joined_parts(const JsonFields& message) {
  std::string text;
  const std::vector<JsonFields> parts = *message.objects("content");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::optional<std::string> part = text_of_part(parts[i]);
    if (!part) {
      throw bad_param(
          parts[i].path(),
          fmt::format("'{}' must be a text part: this model reads text only", parts[i].path()));
    }
    if (i > 0) text += '\n';
    text += *part;
  }
  return text;
}

// An assistant's message that only calls tools says an empty text: templates join it to others.
std::string content_of(const JsonFields& message, const std::string& role) {
  switch (message.kind("content")) {
    case JsonKind::kText:
      return *message.text("content");
    case JsonKind::kArray:
      return joined_parts(message);
    case JsonKind::kAbsent:
    case JsonKind::kNull:
      if (role == "assistant") return message.text("refusal").value_or("");
      [[fallthrough]];
    default:
      throw message.fault("content", "must be a string or a list of text parts");
  }
}

// The arguments as the object they spell, which is what templates index; a text that is none stays
// a text.
std::string arguments_json(const JsonFields& function) {
  if (function.kind("arguments") == JsonKind::kObject) return function.dump("arguments");
  const std::string text = function.text("arguments").value_or("");
  try {
    return JsonFields::parse(
               text, {.max_depth = 32, .max_values = 10'000, .max_keys = kBodyLimits.max_keys})
        .dump();
  } catch (const ApiError&) {
    return json_quoted(text);
  }
}

std::string tool_calls_json(const JsonFields& message) {
  const std::vector<JsonFields> calls = *message.objects("tool_calls");
  std::string out;
  for (const JsonFields& call : calls) {
    const std::optional<JsonFields> function = call.object("function");
    const std::optional<std::string> name = function ? function->text("name") : std::nullopt;
    if (!name) throw call.fault("function", "must have a name");
    out += fmt::format(R"({}{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                       out.empty() ? "" : ",",
                       json_quoted(call.text("id").value_or("")),
                       json_quoted(*name),
                       arguments_json(*function));
  }
  return "[" + out + "]";
}

std::string message_json(const JsonFields& message) {
  const std::string role = checked_role(message);
  std::string out = fmt::format(
      R"({{"role":{},"content":{})", json_quoted(role), json_quoted(content_of(message, role)));
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"}) {
    const std::optional<std::string> text = message.text(name);
    if (text) out += fmt::format(",{}:{}", json_quoted(name), json_quoted(*text));
  }
  if (message.has("tool_calls")) out += ",\"tool_calls\":" + tool_calls_json(message);
  return out + "}";
}

// Switches of a template, such as enable_thinking: plain values only, and none that would replace
// ours.
std::string kwargs_json(const JsonFields& body) {
  const std::optional<JsonFields> kwargs = body.object("chat_template_kwargs");
  if (!kwargs) return {};
  const std::vector<std::string> names = kwargs->names();
  if (names.size() > kMaxKwargs)
    throw body.fault("chat_template_kwargs", fmt::format("has more than {} entries", kMaxKwargs));
  std::string out;
  for (const std::string& name : names) {
    const JsonKind kind = kwargs->kind(name);
    const bool plain = kind == JsonKind::kBoolean || kind == JsonKind::kNumber ||
                       kind == JsonKind::kText || kind == JsonKind::kNull;
    const std::string value = plain ? kwargs->dump(name) : std::string();
    const bool ours = name == "messages" || name == "tools" || name == "add_generation_prompt" ||
                      name == "chat_template" || name == "tokenize" ||
                      name == "continue_final_message" || name.find("_token") != std::string::npos;
    if (!plain || ours || value.size() > kMaxKwargBytes || name.size() > kMaxKwargBytes) {
      throw kwargs->fault(
          name,
          fmt::format("is not allowed: plain values of at most {} bytes only", kMaxKwargBytes));
    }
    out += fmt::format(",{}:{}", json_quoted(name), value);
  }
  return out;
}

}  // namespace

bool wants_generation_prompt(const JsonFields& body) {
  const bool continues = body.boolean("continue_final_message").value_or(false);
  const bool generate = body.boolean("add_generation_prompt").value_or(!continues);
  if (continues && generate)
    throw body.fault("continue_final_message", "and 'add_generation_prompt' must not both be true");
  return generate;
}

ChatTurn final_turn(const JsonFields& body) {
  const JsonFields last = body.objects("messages")->back();
  std::string role = checked_role(last);
  std::string content = content_of(last, role);
  return {std::move(role), std::move(content)};
}

std::string chat_template_inputs(const JsonFields& body, const CallLimits& limits) {
  const std::optional<std::vector<JsonFields>> messages = body.objects("messages");
  if (!messages || messages->empty())
    throw body.fault("messages", "must be a list with at least one message");
  if (messages->size() > limits.max_messages)
    throw body.fault("messages", fmt::format("has more than {} messages", limits.max_messages));
  std::string out;
  for (const JsonFields& message : *messages) {
    out += (out.empty() ? "" : ",") + message_json(message);
  }
  out = "{\"messages\":[" + out + "]";
  const std::optional<std::vector<JsonFields>> tools = body.objects("tools");
  if (tools && !tools->empty()) out += ",\"tools\":" + body.dump("tools");
  out += fmt::format(",\"add_generation_prompt\":{}", wants_generation_prompt(body));
  if (body.boolean("continue_final_message").value_or(false))
    out += ",\"continue_final_message\":true";
  if (body.has("reasoning_effort")) {
    out += ",\"reasoning_effort\":" + json_quoted(*body.text("reasoning_effort"));
  }
  return out + kwargs_json(body) + "}";
}

}  // namespace outrider
