// See responses.h.
#include "http/dialects/responses.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "http/api/json_fields.h"
#include "http/api/request_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"max_tokens' or 'max_completion_tokens", "max_output_tokens"},
    {"max_completion_tokens", "max_output_tokens"},
    {"max_tokens", "max_output_tokens"},
    {"messages", "input"},
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"}};

constexpr const char* kNotStored = "responses are not stored: send the whole conversation as input";

// Each kind of item: how its id begins, what its content is called, and its events.
struct ItemForm {
  const char* id_prefix;
  const char* content_type;  // nullptr: none
  const char* delta_event;
  const char* done_event;
};

const ItemForm& form_of(AnswerPartKind kind) {
  static constexpr ItemForm kForms[] = {
      {"rs_", "reasoning_text", "response.reasoning_text.delta", "response.reasoning_text.done"},
      {"msg_", "output_text", "response.output_text.delta", "response.output_text.done"},
      {"fc_",
       nullptr,
       "response.function_call_arguments.delta",
       "response.function_call_arguments.done"}};
  return kForms[static_cast<size_t>(kind)];
}

Json usage_json(const Usage& usage) {
  return {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.completion_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

class ResponsesWriter : public AnswerWriter {
 public:
  // response: the object as far as the request makes it.
  explicit ResponsesWriter(Json response) : response_(std::move(response)) {}

  void start(const ResponseHead& head, const Usage&) override {
    request_id_ = head.id;
    response_["id"] = "resp_" + head.id;
    response_["created_at"] = head.created;
    response_["model"] = head.model;
    add("response.created", {{"response", response_}});
    add("response.in_progress", {{"response", response_}});
  }

  void open(const AnswerPart& part) override {
    kind_ = part.kind;
    text_.clear();
    logprobs_ = Json::array();
    item_ = new_item(part);
    add("response.output_item.added", {{"output_index", num_items()}, {"item", item_}});
    if (form().content_type)
      add("response.content_part.added", of_content({{"part", content_part()}}));
  }

  void extend(const std::string& text, const std::string& logprobs) override {
    const Json entries = logprobs.empty() ? Json::array() : Json::parse(logprobs);
    text_ += text;
    logprobs_.insert(logprobs_.end(), entries.begin(), entries.end());
    if (text.empty()) return;
    Json event = of_content({{"delta", text}});
    if (kind_ == AnswerPartKind::kText) event["logprobs"] = entries;
    add(form().delta_event, std::move(event));
  }

  void close(bool cut) override {
    if (kind_ == AnswerPartKind::kToolCall) {
      item_["arguments"] = text_;
      add(form().done_event, of_content({{"name", item_["name"]}, {"arguments", text_}}));
    } else {
      Json event = of_content({{"text", text_}});
      if (kind_ == AnswerPartKind::kText) event["logprobs"] = logprobs_;
      add(form().done_event, std::move(event));
      add("response.content_part.done", of_content({{"part", content_part()}}));
      item_["content"].push_back(content_part());
    }
    item_["status"] = cut ? "incomplete" : "completed";
    add("response.output_item.done", {{"output_index", num_items()}, {"item", item_}});
    response_["output"].push_back(std::move(item_));
  }

  void end(const AnswerEnd& end) override {
    const bool cut = end.finish_reason == "length";
    if (num_items() == 0) {  // clients expect a message
      open({});
      close(cut);
    }
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["usage"] = usage_json(end.usage);
    add(cut ? "response.incomplete" : "response.completed", {{"response", response_}});
  }

  // The event has its members twice: OpenAI documents them flat, its clients read `error`.
  void fail(const std::string& error) override {
    const Json body = Json::parse(error).at("error");
    add("error",
        {{"code", body.at("code")},
         {"message", body.at("message")},
         {"param", body.at("param")},
         {"error", body}});
    if (request_id_.empty()) return;
    response_["status"] = "failed";
    response_["error"] = {{"code", "server_error"}, {"message", body.at("message")}};
    add("response.failed", {{"response", response_}});
  }

  std::string whole() const override { return dumped(response_); }

 private:
  const ItemForm& form() const { return form_of(kind_); }
  size_t num_items() const { return response_["output"].size(); }

  Json new_item(const AnswerPart& part) const {
    Json item = {{"id", fmt::format("{}{}_{}", form().id_prefix, request_id_, num_items())},
                 {"status", "in_progress"}};
    switch (part.kind) {
      case AnswerPartKind::kReasoning:
        item.update(
            {{"type", "reasoning"}, {"summary", Json::array()}, {"content", Json::array()}});
        break;
      case AnswerPartKind::kText:
        item.update({{"type", "message"}, {"role", "assistant"}, {"content", Json::array()}});
        break;
      case AnswerPartKind::kToolCall:
        item.update({{"type", "function_call"},
                     {"call_id", part.call_id},
                     {"name", part.name},
                     {"arguments", ""}});
    }
    return item;
  }

  Json content_part() const {
    Json part = {{"type", form().content_type}, {"text", text_}};
    if (kind_ == AnswerPartKind::kText)
      part.update({{"annotations", Json::array()}, {"logprobs", logprobs_}});
    return part;
  }

  Json of_content(Json event) const {
    event["item_id"] = item_.at("id");
    event["output_index"] = num_items();
    if (form().content_type) event["content_index"] = 0;
    return event;
  }

  void add(const char* type, Json event) {
    if (!is_streamed()) return;
    event["type"] = type;
    event["sequence_number"] = num_events_++;
    add_event(type, dumped(event));
  }

  Json response_;
  std::string request_id_;
  AnswerPartKind kind_ = AnswerPartKind::kText;  // of the open item, as all below
  Json item_;
  std::string text_;
  Json logprobs_;
  int64_t num_events_ = 0;
};

Json member(const JsonFields& body, const char* name, Json otherwise = nullptr) {
  return body.has(name) ? Json::parse(body.dump(name)) : std::move(otherwise);
}

void refuse_state(const JsonFields& body) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (body.has(name)) throw unsupported(body, name, kNotStored);
  }
  if (body.boolean("background").value_or(false))
    throw unsupported(body, "background", "responses are not stored: use 'stream'");
  if (body.text("truncation").value_or("disabled") != "disabled")
    throw unsupported(body, "truncation", "only disabled is supported");
}

// A text, or a list of text parts as chat completions has them.
Json content_of(const JsonFields& item, const char* name) {
  if (item.kind(name) != JsonKind::kArray) return item.needed_text(name);
  Json parts = Json::array();
  for (const JsonFields& part : item.objects(name).value_or(std::vector<JsonFields>{})) {
    const std::string type = part.needed_text("type");
    const bool is_text = type == "input_text" || type == "output_text" || type == "text";
    if (!is_text && type != "refusal") {
      throw bad_param(
          part.path(),
          fmt::format("'{}' must be a text part: this model reads text only", part.path()));
    }
    parts.push_back({{"type", "text"}, {"text", part.needed_text(is_text ? "text" : "refusal")}});
  }
  return parts;
}

// Items of one turn of the assistant are one message of chat completions.
Json& assistant_turn(Json* messages, bool begins_new) {
  if (begins_new || messages->empty() || messages->back().at("role") != "assistant")
    messages->push_back({{"role", "assistant"}, {"content", ""}});
  return messages->back();
}

void add_message(const JsonFields& item, Json* messages) {
  const std::string role = item.needed_text("role");
  if (role != "assistant") {
    if (role != "user" && role != "system" && role != "developer")
      throw unsupported(item, "role", "must be user, assistant, system or developer");
    messages->push_back({{"role", role}, {"content", content_of(item, "content")}});
    return;
  }
  const bool is_open = !messages->empty() && messages->back().contains("reasoning_content") &&
                       messages->back().at("content") == "" &&
                       !messages->back().contains("tool_calls");
  assistant_turn(messages, !is_open)["content"] = content_of(item, "content");
}

void add_reasoning(const JsonFields& item, Json* messages) {
  std::string text;
  for (const char* name : {"content", "summary"}) {
    if (!text.empty() || !item.has(name)) continue;
    for (const JsonFields& part : item.objects(name).value_or(std::vector<JsonFields>{}))
      text += part.needed_text("text");
  }
  if (!text.empty()) assistant_turn(messages, true)["reasoning_content"] = text;
}

void add_function_call(const JsonFields& item, Json* messages) {
  Json& turn = assistant_turn(messages, false);
  if (turn.at("content") == "") turn["content"] = nullptr;
  turn["tool_calls"].push_back(
      {{"id", item.needed_text("call_id")},
       {"type", "function"},
       {"function",
        {{"name", item.needed_text("name")}, {"arguments", item.needed_text("arguments")}}}});
}

void add_item(const JsonFields& item, Json* messages) {
  const std::string type = item.text("type").value_or("message");
  if (type == "message") {
    add_message(item, messages);
  } else if (type == "reasoning") {
    add_reasoning(item, messages);
  } else if (type == "function_call") {
    add_function_call(item, messages);
  } else if (type == "function_call_output") {
    messages->push_back({{"role", "tool"},
                         {"tool_call_id", item.needed_text("call_id")},
                         {"content", content_of(item, "output")}});
  } else {
    throw unsupported(item,
                      "type",
                      type == "item_reference" ? kNotStored
                                               : "must be message, reasoning, function_call or "
                                                 "function_call_output");
  }
}

Json messages_of(const JsonFields& body) {
  Json messages = Json::array();
  if (const auto instructions = body.text("instructions"))
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  if (body.kind("input") == JsonKind::kText) {
    messages.push_back({{"role", "user"}, {"content", *body.text("input")}});
    return messages;
  }
  const auto items = body.objects("input");
  if (!items || items->empty())
    throw body.fault("input", "must be a text or a list of items that is not empty");
  for (const JsonFields& item : *items) add_item(item, &messages);
  return messages;
}

// {name, ...} of type function, as chat completions nests it.
Json nested_function(const JsonFields& tool) {
  if (tool.text("type") != "function")
    throw unsupported(tool, "type", "only tools of type function are supported");
  Json function = Json::parse(tool.dump());
  function.erase("type");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void add_tools(const JsonFields& body, Json* chat) {
  if (const auto tools = body.objects("tools")) {
    (*chat)["tools"] = Json::array();
    for (const JsonFields& tool : *tools) (*chat)["tools"].push_back(nested_function(tool));
  }
  if (body.kind("tool_choice") == JsonKind::kObject)
    (*chat)["tool_choice"] = nested_function(*body.object("tool_choice"));
}

void add_text_format(const JsonFields& body, Json* chat) {
  const auto text = body.object("text");
  const auto format = text ? text->object("format") : std::nullopt;
  if (!format) return;
  Json nested = Json::parse(format->dump());
  if (format->text("type") == "json_schema") {
    nested.erase("type");
    nested = {{"type", "json_schema"}, {"json_schema", std::move(nested)}};
  }
  (*chat)["response_format"] = std::move(nested);
}

// Reasoning is given in the open, so that its encrypted form is not needed.
void add_include(const JsonFields& body, Json* chat) {
  for (const std::string& name : body.texts("include").value_or(std::vector<std::string>{})) {
    if (name == "message.output_text.logprobs") {
      (*chat)["logprobs"] = true;
    } else if (name != "reasoning.encrypted_content") {
      throw unsupported(body, "include", fmt::format("{} is not supported", json_quoted(name)));
    }
  }
  if (body.has("top_logprobs")) (*chat)["logprobs"] = true;
}

Json chat_body(const JsonFields& body) {
  refuse_state(body);
  Json chat = Json::parse(shared_with_chat(body, Endpoint::kResponses));
  chat["messages"] = messages_of(body);
  add_tools(body, &chat);
  add_text_format(body, &chat);
  add_include(body, &chat);
  if (body.has("max_output_tokens"))
    chat["max_completion_tokens"] = member(body, "max_output_tokens");
  if (const auto reasoning = body.object("reasoning"); reasoning && reasoning->has("effort"))
    chat["reasoning_effort"] = *reasoning->text("effort");
  return chat;
}

// What an answer repeats of its request.
Json response_of(const JsonFields& body, const std::vector<std::string>& warnings) {
  Json response = {{"id", nullptr},
                   {"object", "response"},
                   {"created_at", nullptr},
                   {"status", "in_progress"},
                   {"background", false},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", nullptr},
                   {"output", Json::array()},
                   {"previous_response_id", nullptr},
                   {"service_tier", "default"},
                   {"store", false},
                   {"truncation", "disabled"},
                   {"usage", nullptr}};
  for (const char* name :
       {"instructions", "max_output_tokens", "temperature", "top_p", "user", "prompt_cache_key"}) {
    response[name] = member(body, name);
  }
  response["metadata"] = member(body, "metadata", Json::object());
  response["parallel_tool_calls"] = member(body, "parallel_tool_calls", true);
  response["reasoning"] = member(body, "reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  response["text"] = member(body, "text", {{"format", {{"type", "text"}}}});
  response["tool_choice"] = member(body, "tool_choice", "auto");
  response["tools"] = member(body, "tools", Json::array());
  response["top_logprobs"] = member(body, "top_logprobs", 0);
  if (!warnings.empty()) response["warnings"] = warnings;
  return response;
}

}  // namespace

DialectCall read_responses_call(std::string_view text, bool strict) {
  const JsonFields body = JsonFields::parse(text);
  std::vector<std::string> warnings = check_fields(body, Endpoint::kResponses, strict);
  if (const auto format = body.object("text"); format && format->has("verbosity"))
    warnings.emplace_back("'text.verbosity' was ignored: models here do not know it");
  return {dumped(chat_body(body)),
          std::make_unique<ResponsesWriter>(response_of(body, warnings)),
          kNames};
}

}  // namespace outrider
