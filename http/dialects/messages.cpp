// See messages.h.
#include "http/dialects/messages.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "http/api/json_fields.h"
#include "http/api/request_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"stop", "stop_sequences"},
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"}};

// Each kind of content block: its type, its member that grows, and the delta that makes it grow.
struct BlockForm {
  const char* type;
  const char* member;
  const char* delta_type;
  const char* delta_member;
};

const BlockForm& form_of(AnswerPartKind kind) {
  static constexpr BlockForm kForms[] = {{"thinking", "thinking", "thinking_delta", "thinking"},
                                         {"text", "text", "text_delta", "text"},
                                         {"tool_use", "input", "input_json_delta", "partial_json"}};
  return kForms[static_cast<size_t>(kind)];
}

// Anthropic counts what was read from a cache apart.
Json usage_json(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

// Arguments that are no object, as of a call that was cut, are none.
Json tool_input(const std::string& arguments) {
  try {
    return Json::parse(JsonFields::parse(arguments).dump());
  } catch (const ApiError&) {
    return Json::object();
  }
}

class MessagesWriter : public AnswerWriter {
 public:
  explicit MessagesWriter(const std::vector<std::string>& warnings) {
    message_ = {{"id", nullptr},
                {"type", "message"},
                {"role", "assistant"},
                {"model", nullptr},
                {"content", Json::array()},
                {"stop_reason", nullptr},
                {"stop_sequence", nullptr},
                {"usage", nullptr}};
    if (!warnings.empty()) message_["warnings"] = warnings;
  }

  void start(const ResponseHead& head, const Usage& usage) override {
    message_["id"] = "msg_" + head.id;
    message_["model"] = head.model;
    message_["usage"] = usage_json(usage);
    add("message_start", {{"message", message_}});
  }

  void open(const AnswerPart& part) override {
    kind_ = part.kind;
    text_.clear();
    block_ = {{"type", form().type}};
    if (kind_ == AnswerPartKind::kToolCall) {
      block_.update({{"id", part.call_id}, {"name", part.name}, {"input", Json::object()}});
    } else {
      block_[form().member] = "";
      if (kind_ == AnswerPartKind::kReasoning) block_["signature"] = "";
    }
    add("content_block_start", {{"index", num_blocks()}, {"content_block", block_}});
  }

  void extend(const std::string& text, const std::string&) override {
    text_ += text;
    add_delta({{"type", form().delta_type}, {form().delta_member, text}});
  }

  void close(bool) override {
    if (kind_ == AnswerPartKind::kReasoning)
      add_delta({{"type", "signature_delta"}, {"signature", ""}});
    block_[form().member] = kind_ == AnswerPartKind::kToolCall ? tool_input(text_) : Json(text_);
    add("content_block_stop", {{"index", num_blocks()}});
    message_["content"].push_back(std::move(block_));
  }

  void end(const AnswerEnd& end) override {
    message_["stop_reason"] = end.finish_reason == "length"       ? "max_tokens"
                              : end.finish_reason == "tool_calls" ? "tool_use"
                              : end.stop_text.empty()             ? "end_turn"
                                                                  : "stop_sequence";
    if (!end.stop_text.empty()) message_["stop_sequence"] = end.stop_text;
    message_["usage"] = usage_json(end.usage);
    add("message_delta",
        {{"delta",
          {{"stop_reason", message_["stop_reason"]}, {"stop_sequence", message_["stop_sequence"]}}},
         {"usage", message_["usage"]}});
    add("message_stop", Json::object());
  }

  void fail(const std::string& error) override { add_event("error", messages_error_json(error)); }

  std::string whole() const override { return dumped(message_); }

 private:
  const BlockForm& form() const { return form_of(kind_); }
  size_t num_blocks() const { return message_.at("content").size(); }

  void add_delta(Json delta) {
    add("content_block_delta", {{"index", num_blocks()}, {"delta", std::move(delta)}});
  }

  void add(const char* type, Json event) {
    if (!is_streamed()) return;
    event["type"] = type;
    add_event(type, dumped(event));
  }

  Json message_;
  AnswerPartKind kind_ = AnswerPartKind::kText;  // of the open block, as all below
  Json block_;
  std::string text_;
};

Json text_part(const JsonFields& block) {
  return {{"type", "text"}, {"text", block.needed_text("text")}};
}

// A text, or a list of text blocks.
Json texts_of(const JsonFields& object, const char* name) {
  if (object.kind(name) != JsonKind::kArray) return object.needed_text(name);
  Json parts = Json::array();
  for (const JsonFields& block : object.objects(name).value_or(std::vector<JsonFields>{})) {
    if (block.text("type") != "text")
      throw unsupported(block, "type", "must be text: this model reads text only");
    parts.push_back(text_part(block));
  }
  return parts;
}

// Results of tools are messages of their own and come before what the user says to them.
void add_user_blocks(const std::vector<JsonFields>& blocks, Json* messages) {
  Json parts = Json::array();
  for (const JsonFields& block : blocks) {
    const std::string type = block.needed_text("type");
    if (type == "tool_result") {
      messages->push_back({{"role", "tool"},
                           {"tool_call_id", block.needed_text("tool_use_id")},
                           {"content", block.has("content") ? texts_of(block, "content") : ""}});
    } else if (type == "text") {
      parts.push_back(text_part(block));
    } else {
      throw unsupported(block, "type", "must be text or tool_result: this model reads text only");
    }
  }
  if (!parts.empty()) messages->push_back({{"role", "user"}, {"content", std::move(parts)}});
}

void add_assistant_blocks(const std::vector<JsonFields>& blocks, Json* messages) {
  Json parts = Json::array();
  Json turn = {{"role", "assistant"}, {"content", nullptr}};
  std::string reasoning;
  for (const JsonFields& block : blocks) {
    const std::string type = block.needed_text("type");
    if (type == "text") {
      parts.push_back(text_part(block));
    } else if (type == "thinking") {
      reasoning += block.needed_text("thinking");
    } else if (type == "tool_use") {
      turn["tool_calls"].push_back(
          {{"id", block.needed_text("id")},
           {"type", "function"},
           {"function",
            {{"name", block.needed_text("name")}, {"arguments", block.dump("input")}}}});
    } else {
      throw unsupported(block, "type", "must be text, thinking or tool_use");
    }
  }
  if (!reasoning.empty()) turn["reasoning_content"] = reasoning;
  if (!parts.empty() || !turn.contains("tool_calls")) turn["content"] = std::move(parts);
  messages->push_back(std::move(turn));
}

Json messages_of(const JsonFields& body) {
  Json messages = Json::array();
  if (body.has("system"))
    messages.push_back({{"role", "system"}, {"content", texts_of(body, "system")}});
  const auto turns = body.objects("messages");
  if (!turns || turns->empty())
    throw body.fault("messages", "must be a list with at least one message");
  for (const JsonFields& turn : *turns) {
    const std::string role = turn.needed_text("role");
    if (role != "user" && role != "assistant" && role != "system")
      throw unsupported(turn, "role", "must be user or assistant");
    if (turn.kind("content") != JsonKind::kArray || role == "system") {
      messages.push_back({{"role", role}, {"content", texts_of(turn, "content")}});
      continue;
    }
    const std::vector<JsonFields> blocks = *turn.objects("content");
    if (role == "assistant") {
      add_assistant_blocks(blocks, &messages);
    } else if (blocks.empty()) {
      throw unsupported(turn, "content", "must have a block");
    } else {
      add_user_blocks(blocks, &messages);
    }
  }
  return messages;
}

void add_tools(const JsonFields& body, Json* chat) {
  const auto tools = body.objects("tools");
  if (!tools) return;
  Json list = Json::array();
  for (const JsonFields& tool : *tools) {
    if (tool.text("type").value_or("custom") != "custom")
      throw unsupported(tool, "type", "the server has no tools of its own: custom ones only");
    Json function = {{"name", tool.needed_text("name")}};
    if (tool.has("description")) function["description"] = *tool.text("description");
    function["parameters"] = Json::parse(tool.dump("input_schema"));
    if (tool.has("strict")) function["strict"] = *tool.boolean("strict");
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  (*chat)["tools"] = std::move(list);
}

void add_tool_choice(const JsonFields& body, Json* chat) {
  const auto choice = body.object("tool_choice");
  if (!choice) return;
  const std::string type = choice->needed_text("type");
  if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", choice->needed_text("name")}}}};
  } else if (type == "auto" || type == "any" || type == "none") {
    (*chat)["tool_choice"] = type == "any" ? "required" : type;
  } else {
    throw unsupported(*choice, "type", "must be auto, any, tool or none");
  }
  if (choice->boolean("disable_parallel_tool_use").value_or(false))
    (*chat)["parallel_tool_calls"] = false;
}

void add_output_config(const JsonFields& body, Json* chat) {
  const auto config = body.object("output_config");
  if (!config) return;
  if (config->has("effort")) (*chat)["reasoning_effort"] = *config->text("effort");
  const auto format = config->object("format");
  if (!format) return;
  if (format->text("type") != "json_schema")
    throw unsupported(*format, "type", "must be json_schema");
  (*chat)["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "output"}, {"schema", Json::parse(format->dump("schema"))}}}};
}

// Templates of models that can think ask for enable_thinking.
void add_thinking(const JsonFields& body, Json* chat) {
  const auto thinking = body.object("thinking");
  body.object("chat_template_kwargs");  // is one, or refused
  if (!thinking) return;
  (*chat)["chat_template_kwargs"]["enable_thinking"] = thinking->text("type") != "disabled";
}

// What a prompt is made of.
Json prompt_body(const JsonFields& body) {
  Json chat = Json::parse(shared_with_chat(body, Endpoint::kMessages));
  chat["messages"] = messages_of(body);
  // A last message of the assistant's is the beginning of its answer.
  if (chat["messages"].back()["role"] == "assistant") chat["continue_final_message"] = true;
  add_tools(body, &chat);
  add_thinking(body, &chat);
  add_output_config(body, &chat);
  return chat;
}

// Most of our types of errors are Anthropic's too.
std::string error_type_of(const std::string& type) {
  if (type == "service_unavailable_error") return "overloaded_error";
  return type == "server_error" || type == "not_supported_error" ? "api_error" : type;
}

}  // namespace

DialectCall read_messages_call(std::string_view text, bool strict) {
  const JsonFields body = JsonFields::parse(text);
  std::vector<std::string> warnings = check_fields(body, Endpoint::kMessages, strict);
  if (const auto thinking = body.object("thinking"); thinking && thinking->has("budget_tokens"))
    warnings.emplace_back("'thinking.budget_tokens' was ignored: thinking has no budget here");
  Json chat = prompt_body(body);
  add_tool_choice(body, &chat);
  if (body.has("stop_sequences")) chat["stop"] = Json::parse(body.dump("stop_sequences"));
  // Clients must send max_tokens and send a constant, whatever the context.
  return {dumped(chat), std::make_unique<MessagesWriter>(warnings), kNames, true};
}

std::string token_count_body(std::string_view text, bool strict) {
  const JsonFields body = JsonFields::parse(text);
  check_fields(body, Endpoint::kMessages, strict);
  const Json chat = prompt_body(body);
  Json out = Json::object();
  for (const char* name : {"model",
                           "messages",
                           "tools",
                           "chat_template_kwargs",
                           "reasoning_effort",
                           "continue_final_message"}) {
    if (chat.contains(name)) out[name] = chat.at(name);
  }
  return dumped(out);
}

std::string token_count_json(int64_t num_tokens) {
  return dumped(Json{{"input_tokens", num_tokens}});
}

bool is_messages_path(std::string_view path) {
  return path.find("/messages") != std::string_view::npos;
}

std::string messages_error_json(std::string_view error) {
  const Json body = Json::parse(error).at("error");
  return dumped(Json{{"type", "error"},
                     {"error",
                      {{"type", error_type_of(body.at("type").get<std::string>())},
                       {"message", body.at("message")}}}});
}

}  // namespace outrider
