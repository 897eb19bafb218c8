// /v1/responses and /v1/messages over a fake engine, and the parts of an answer that it cannot
// make, given as chat completions.
#include "http/dialects/dialect.h"
#include "http/dialects/messages.h"
#include "http/dialects/responses.h"
#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

using Dialects = HttpFixture;

constexpr const char* kResponses = "/v1/responses";
constexpr const char* kMessages = "/v1/messages";

std::string body_of(const std::string& path, const std::string& fields = "") {
  const char* own = path == kResponses ? "\"input\":" : "\"messages\":";
  if (fields.find(own) != std::string::npos) return "{" + fields + "}";
  return (path == kResponses ? R"({"input":"hi")"
                             : R"({"messages":[{"role":"user","content":"hi"}])") +
         (fields.empty() ? "" : "," + fields) + "}";
}

// What chat completions would say: thoughts, text, and two calls of tools.
json chat_completion() {
  return json::parse(R"({"id":"chatcmpl-x","object":"chat.completion","created":5,"model":"m",
    "choices":[{"index":0,"message":{"role":"assistant","content":"text","reasoning_content":"why",
      "tool_calls":[
        {"id":"call_a","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
        {"id":"call_b","type":"function","function":{"name":"g","arguments":"{"}}]},
      "logprobs":null,"finish_reason":"tool_calls","stop_reason":null}],
    "usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16,
             "prompt_tokens_details":{"cached_tokens":3}}})");
}

// The same as a stream, pieces of one character.
class ChunksOf : public ByteSource {
 public:
  explicit ChunksOf(const json& completion) {
    json chunk = completion;
    const json message = completion["choices"][0]["message"];
    const auto add = [&](const json& delta, const json& finish_reason) {
      chunk["choices"] =
          json::array({{{"index", 0}, {"delta", delta}, {"finish_reason", finish_reason}}});
      bytes_ += "data: " + chunk.dump() + "\n\n";
    };
    for (const char* name : {"reasoning_content", "content"}) {
      for (const char c : message[name].get<std::string>())
        add({{name, std::string(1, c)}}, nullptr);
    }
    for (size_t i = 0; i < message["tool_calls"].size(); ++i) {
      json call = message["tool_calls"][i];
      call["index"] = i;
      const std::string arguments = call["function"]["arguments"];
      call["function"]["arguments"] = "";
      add({{"tool_calls", {call}}}, nullptr);
      for (const char c : arguments) {
        const json piece = {{"index", i}, {"function", {{"arguments", std::string(1, c)}}}};
        add({{"tool_calls", {piece}}}, nullptr);
      }
    }
    add(json::object(), completion["choices"][0]["finish_reason"]);
    bytes_ += ": ping\n\ndata: [DONE]\n\n";
  }
  bool next(std::string* out) override {
    *out += bytes_;
    return false;
  }

 private:
  std::string bytes_;
};

DialectCall call_of(const std::string& path, const std::string& fields = "") {
  return path == kResponses ? read_responses_call(body_of(path, fields), false)
                            : read_messages_call(body_of(path, fields), false);
}

struct Streamed {
  std::vector<json> events;
  std::vector<std::string> types;  // without repetitions
};

Streamed events_in(const std::string& text) {
  Streamed out;
  size_t begin = 0;
  for (size_t end; (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    const std::string event = text.substr(begin, end - begin);
    if (event == ": ping") continue;
    const size_t data = event.find("\ndata: ");
    EXPECT_EQ(event.rfind("event: ", 0), 0u) << event;
    out.events.push_back(json::parse(event.substr(data + 7)));
    const std::string type = event.substr(7, data - 7);
    EXPECT_EQ(out.events.back()["type"], type);
    if (out.types.empty() || out.types.back() != type) out.types.push_back(type);
  }
  return out;
}

Streamed stream_of(const std::string& path) {
  DialectCall call = call_of(path);
  const auto source =
      dialect_stream(std::move(call.writer), std::make_unique<ChunksOf>(chat_completion()));
  std::string text;
  while (source->next(&text)) {
  }
  EXPECT_NE(text.find(": ping\n\n"), std::string::npos);
  return events_in(text);
}

TEST(Responses, PartsOfAnAnswerAreItems) {
  const json out =
      json::parse(dialect_answer(*call_of(kResponses).writer, chat_completion().dump()));
  EXPECT_EQ(out["id"], "resp_x");
  EXPECT_EQ(out["status"], "completed");
  EXPECT_EQ(out["usage"]["input_tokens"], 7);
  EXPECT_EQ(out["usage"]["input_tokens_details"]["cached_tokens"], 3);
  ASSERT_EQ(out["output"].size(), 4u);
  EXPECT_EQ(out["output"][0]["type"], "reasoning");
  EXPECT_EQ(out["output"][0]["content"][0]["text"], "why");
  EXPECT_EQ(out["output"][1]["content"][0]["text"], "text");
  EXPECT_EQ(out["output"][2]["call_id"], "call_a");
  EXPECT_EQ(out["output"][2]["arguments"], R"({"a":1})");
  EXPECT_EQ(out["output"][3]["name"], "g");
}

TEST(Responses, StreamHasEveryEventAndEndsWithTheWhole) {
  const Streamed out = stream_of(kResponses);
  const std::vector<std::string> call = {"response.output_item.added",
                                         "response.function_call_arguments.delta",
                                         "response.function_call_arguments.done",
                                         "response.output_item.done"};
  std::vector<std::string> expected = {"response.created", "response.in_progress"};
  for (const std::string part : {"reasoning_text", "output_text"}) {
    for (const std::string& type : {std::string("output_item.added"),
                                    std::string("content_part.added"),
                                    part + ".delta",
                                    part + ".done",
                                    std::string("content_part.done"),
                                    std::string("output_item.done")}) {
      expected.push_back("response." + type);
    }
  }
  expected.insert(expected.end(), call.begin(), call.end());
  expected.insert(expected.end(), call.begin(), call.end());
  expected.emplace_back("response.completed");
  EXPECT_EQ(out.types, expected);
  for (size_t i = 0; i < out.events.size(); ++i) EXPECT_EQ(out.events[i]["sequence_number"], i);
  const json whole =
      json::parse(dialect_answer(*call_of(kResponses).writer, chat_completion().dump()));
  EXPECT_EQ(out.events.back()["response"], whole);
}

TEST(Messages, PartsOfAnAnswerAreBlocks) {
  const json out =
      json::parse(dialect_answer(*call_of(kMessages).writer, chat_completion().dump()));
  EXPECT_EQ(out["id"], "msg_x");
  EXPECT_EQ(out["stop_reason"], "tool_use");
  EXPECT_EQ(out["usage"]["input_tokens"], 4);  // without those of the cache
  EXPECT_EQ(out["usage"]["cache_read_input_tokens"], 3);
  EXPECT_EQ(out["usage"]["output_tokens"], 9);
  const json expected = json::parse(R"([
    {"type":"thinking","thinking":"why","signature":""},
    {"type":"text","text":"text"},
    {"type":"tool_use","id":"call_a","name":"f","input":{"a":1}},
    {"type":"tool_use","id":"call_b","name":"g","input":{}}])");  // the cut call has no input
  EXPECT_EQ(out["content"], expected);
}

TEST(Messages, StreamHasEveryEvent) {
  const Streamed out = stream_of(kMessages);
  std::vector<std::string> expected = {"message_start"};
  for (int i = 0; i < 4; ++i) {
    for (const char* type : {"content_block_start", "content_block_delta", "content_block_stop"})
      expected.emplace_back(type);
  }
  expected.insert(expected.end(), {"message_delta", "message_stop"});
  EXPECT_EQ(out.types, expected);
  EXPECT_EQ(out.events[0]["message"]["usage"]["cache_read_input_tokens"], 3);
  std::string arguments;
  for (const json& event : out.events) {
    if (event["type"] == "content_block_delta" && event["index"] == 2)
      arguments += event["delta"]["partial_json"].get<std::string>();
  }
  EXPECT_EQ(arguments, R"({"a":1})");
}

TEST(Responses, InputItemsBecomeChatMessages) {
  const json chat = json::parse(read_responses_call(R"({"instructions":"be brief","input":[
      {"role":"user","content":[{"type":"input_text","text":"q"}]},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
      {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":"1"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"2"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
      {"role":"assistant","content":"b"}]})",
                                                    false)
                                    .chat_body)["messages"];
  const json expected = json::parse(R"([
      {"role":"system","content":"be brief"},
      {"role":"user","content":[{"type":"text","text":"q"}]},
      {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"1"},
      {"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"2"}]},
      {"role":"assistant","content":[{"type":"text","text":"a"}]},
      {"role":"assistant","content":"b"}])");
  EXPECT_EQ(chat, expected);
}

TEST(Messages, BlocksBecomeChatMessages) {
  const json chat = json::parse(read_messages_call(R"({"system":"be brief","messages":[
      {"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},
        {"type":"text","text":"a"},{"type":"tool_use","id":"c1","name":"f","input":{"x":1}}]},
      {"role":"user","content":[{"type":"text","text":"and"},
        {"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"1"}]}]}]})",
                                                   false)
                                    .chat_body)["messages"];
  const json expected = json::parse(R"([
      {"role":"system","content":"be brief"},
      {"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"text","text":"a"}],"reasoning_content":"hm",
       "tool_calls":[{"id":"c1","type":"function",
                      "function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"1"}]},
      {"role":"user","content":[{"type":"text","text":"and"}]}])");
  EXPECT_EQ(chat, expected);
}

TEST(Dialect, ToolsAndFormatsAreNestedAsInChat) {
  const json function =
      json::parse(R"({"type":"function","function":{"name":"f","parameters":{}}})");
  const json named = json::parse(R"({"type":"function","function":{"name":"f"}})");
  const json responses =
      json::parse(call_of(kResponses,
                          R"("tools":[{"type":"function","name":"f","parameters":{}}],
                 "tool_choice":{"type":"function","name":"f"},"reasoning":{"effort":"low"},
                 "text":{"format":{"type":"json_schema","name":"n","schema":{},"strict":true}})")
                      .chat_body);
  EXPECT_EQ(responses["tools"], json::array({function}));
  EXPECT_EQ(responses["tool_choice"], named);
  EXPECT_EQ(responses["reasoning_effort"], "low");
  EXPECT_EQ(responses["response_format"],
            json::parse(
                R"({"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":true}})"));
  const json messages = json::parse(
      call_of(kMessages,
              R"("tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"disabled"},
                 "tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true},
                 "output_config":{"format":{"type":"json_schema","schema":{}}})")
          .chat_body);
  EXPECT_EQ(messages["tools"], json::array({function}));
  EXPECT_EQ(messages["tool_choice"], named);
  EXPECT_EQ(messages["parallel_tool_calls"], false);
  EXPECT_EQ(messages["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_EQ(messages["response_format"]["type"], "json_schema");
}

TEST_F(Dialects, AnAnswerWithoutTokens) {
  play("");
  const json response = post_json(kResponses, body_of(kResponses));
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(post_json(kMessages, body_of(kMessages))["content"], json::array());
  EXPECT_EQ(post_json(kMessages, body_of(kMessages))["stop_reason"], "end_turn");
}

TEST_F(Dialects, ErrorsWithinAStreamAreEventsOfTheDialect) {
  play(Script{.tokens = ids_of("abcdef"),
              .pause = std::chrono::milliseconds(20),
              .end = FinishReason::kError,
              .error = "broken"});
  for (const char* path : {kResponses, kMessages}) {
    engine.most_tokens = 3;  // the error comes when the stream has begun
    const ServerResponse reply = post(path, body_of(path, R"("stream":true)"));
    ASSERT_TRUE(reply.stream) << reply.body;
    engine.most_tokens = INT32_MAX;
    std::string text;
    while (reply.stream->next(&text)) {
    }
    const Streamed out = events_in(text);
    if (path == kResponses) {
      EXPECT_EQ(out.types.back(), "response.failed");
      EXPECT_EQ(out.events.back()["response"]["error"]["message"], "broken");
      EXPECT_EQ(out.events[out.events.size() - 2]["message"], "broken");
    } else {
      EXPECT_EQ(out.events.back(),
                json::parse(R"({"type":"error","error":{"type":"api_error","message":"broken"}})"));
    }
  }
}

TEST_F(Dialects, ClientsThatLeaveEndTheirRequest) {
  play_endless();
  for (const char* path : {kResponses, kMessages}) {
    ServerResponse reply = post(path, body_of(path, R"("stream":true,"ignore_eos":true)"));
    ASSERT_TRUE(reply.stream);
    std::string bytes;
    reply.stream->next(&bytes);
    reply.stream.reset();
    int asked = 0;
    ServiceCall call;
    call.path = path;
    call.body.text = body_of(path);
    call.client_gone = [&asked] { return ++asked > 1; };
    EXPECT_TRUE(service->handle(std::move(call)).client_gone);
  }
  EXPECT_EQ(engine.num_cancelled(), 4u);
  EXPECT_EQ(service->num_running(), 0);
}

TEST_F(Dialects, WhatIsRefusedNamesTheDialectsField) {
  const std::vector<std::tuple<const char*, std::string, std::string>> cases = {
      {kResponses, R"("max_output_tokens":0)", "max_output_tokens"},
      {kResponses, R"("max_output_tokens":100000)", "max_output_tokens"},
      {kResponses, R"("previous_response_id":"resp_1")", "previous_response_id"},
      {kResponses, R"("include":["file_search_call.results"])", "include"},
      {kResponses,
       R"("instructions":"x","input":[{"role":"tool","content":"x"}])",
       "input[0].role"},
      {kResponses,
       R"("input":[{"role":"user","content":[{"type":"input_text"}]}])",
       "input[0].content[0].text"},
      {kMessages, R"("system":"x","messages":[{"role":"user"}])", "messages[0].content"},
      {kMessages, R"("messages":[{"role":"user","content":[]}])", "messages[0].content"},
      {kMessages,
       R"("thinking":{"type":"enabled"},"chat_template_kwargs":"x")",
       "chat_template_kwargs"},
      {kResponses, R"("text":{"format":{"type":"xml"}})", "text.format"},
      {kResponses, R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {kMessages, R"("stop_sequences":[""])", "stop_sequences"},
      {kMessages, R"("max_tokens":0)", "max_tokens"},
      {kMessages, R"("tools":[{"type":"bash_20250124","name":"bash"}])", "tools[0].type"}};
  for (const auto& [path, fields, param] : cases) {
    const json out = post_json(path, body_of(path, fields), 400);
    EXPECT_EQ(out["error"]["param"], param) << fields;
    const std::string quoted = "'" + param;
    EXPECT_NE(out["error"]["message"].get<std::string>().find(quoted), std::string::npos) << out;
  }
  EXPECT_EQ(get("/v1/responses/resp_1").status, 404);
  EXPECT_EQ(allow_of(get(kResponses)), "POST");
}

TEST_F(Dialects, MaxTokensOfMessagesIsABound) {
  post_json(kMessages, body_of(kMessages, R"("max_tokens":100000)"));
  const Request request = engine.submitted()[0];
  EXPECT_EQ(request.params.max_tokens, 512 - static_cast<int32_t>(request.prompt.size()));
}

TEST_F(Dialects, UnknownFieldsAreToldOrRefused) {
  for (const char* path : {kResponses, kMessages}) {
    const std::string body = body_of(path, R"("temprature":1)");
    EXPECT_EQ(post_json(path, body)["warnings"].size(), 1u) << path;
    options.call.strict_params = true;
    EXPECT_EQ(post_json(path, body, 400)["error"]["param"], "temprature");
    options.call.strict_params = false;
  }
}

TEST_F(Dialects, CountedTokensAreThoseOfThePrompt) {
  const json whole =
      post_json(kMessages, body_of(kMessages, R"("system":"be brief","max_tokens":2)"));
  const json count =
      post_json("/v1/messages/count_tokens", body_of(kMessages, R"("system":"be brief")"));
  EXPECT_EQ(count, json({{"input_tokens", whole["usage"]["input_tokens"]}}));
  EXPECT_EQ(engine.submitted().size(), 1u);
}

}  // namespace
}  // namespace outrider::testing
