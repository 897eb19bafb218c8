// Tools from the request to the answer: what is refused; a forced call in every format, written by
// random choices among the tokens that its grammar allows and read by the parser; answers of the
// service, whole, streamed and in other dialects.
#include <gtest/gtest.h>

#include <random>

#include "http/api/tool_choice.h"
#include "http/wire/api_error.h"
#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object",
       "properties":{"city":{"type":"string","enum":["Bern","Rome"]},
       "days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]}}},
       {"type":"function","function":{"name":"stop","parameters":{"type":"object",
       "properties":{"now":{"type":"boolean"}},"required":["now"]}}}])";

std::string with(const std::string& tools, const std::string& rest) {
  return "{" + tools + (rest.empty() ? "" : "," + rest) + "}";
}

ToolRequest request_of(const std::string& body, const AnswerFormats& formats) {
  return read_tools(JsonFields::parse(body), formats, {}, nullptr);
}
ToolRequest request_of(const std::string& body) {
  return request_of(body, choose_answer_formats({}, "hermes", "none"));
}

std::string fault_of(const std::string& body) {
  try {
    request_of(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
  return "accepted";
}

TEST(ToolChoice, SaysWhetherCallsAreLookedForAndForced) {
  EXPECT_EQ(request_of("{}").functions, nullptr);
  EXPECT_EQ(request_of(with(kTools, R"("tool_choice":"none")")).functions, nullptr);
  const ToolRequest automatic = request_of(with(kTools, ""));
  EXPECT_EQ(automatic.functions->size(), 2u);
  EXPECT_EQ(automatic.functions->at("weather"), std::set<std::string>{"city"});
  EXPECT_FALSE(automatic.grammar);
  EXPECT_TRUE(request_of(with(kTools, R"("tool_choice":"required")")).is_forced);
  const ToolRequest named =
      request_of(with(kTools, R"("tool_choice":{"type":"function","function":{"name":"stop"}})"));
  EXPECT_TRUE(named.is_forced && named.functions->size() == 1);
  const ToolRequest allowed = request_of(
      with(kTools,
           R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[
              {"type":"function","function":{"name":"stop"}}]}})"));
  EXPECT_TRUE(!allowed.is_forced && allowed.functions->size() == 1);
}

TEST(ToolChoice, WhatIsNotOfItsFormIsRefusedByName) {
  using Row = std::pair<std::string, std::string>;
  for (const auto& [body, param] : std::vector<Row>{
           {R"({"tools":[{"type":"web_search"}]})", "tools[0].type"},
           {R"({"tools":[{"type":"function"}]})", "tools[0].function"},
           {R"({"tools":[{"type":"function","function":{}}]})", "tools[0].function.name"},
           {R"({"tools":[{"type":"function","function":{"name":"a b"}}]})",
            "tools[0].function.name"},
           {R"({"tools":[{"type":"function","function":{"name":"a","parameters":[]}}]})",
            "tools[0].function.parameters"},
           {R"({"tool_choice":"required"})", "tool_choice"},
           {R"({"tool_choice":{"type":"function","function":{"name":"a"}}})", "tool_choice"},
           {with(kTools, R"("tool_choice":"always")"), "tool_choice"},
           {with(kTools, R"("tool_choice":{"type":"function","function":{"name":"x"}})"),
            "tool_choice"}}) {
    EXPECT_EQ(fault_of(body), param) << body;
  }
}

// A text of the grammar, each token drawn evenly among those that may follow.
std::string drawn_text(const GrammarEngine& engine, const Grammar& grammar, std::mt19937& random) {
  const int32_t vocab_size = test_tokenizer()->vocab_size();
  const auto mask = engine.mask(grammar);
  const VocabShard shard{0, vocab_size, vocab_size};
  std::vector<int32_t> output;
  std::string text;
  while (output.size() < 2000) {
    std::vector<uint64_t> words(AllowedBits::num_words(shard), ~uint64_t{0});
    AllowedBits bits(shard, words);
    mask->restrict_next({.committed = output, .num_prompt_tokens = 0, .drafted = {}}, bits);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocab_size; ++id) {
      if ((words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) return text + " (nothing may follow)";
    const int32_t id = allowed[random() % allowed.size()];
    if (id == grammar.end_token_ids.front()) return text;
    output.push_back(id);
    text += test_tokenizer()->token_bytes(id);
  }
  return text + " (no end)";
}

TEST(ToolChoice, AForcedCallIsReadBackInEveryFormat) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  const auto engine = test_engine();
  std::mt19937 random(7);
  int num_parallel = 0;
  for (const char* name : {"hermes",
                           "llama3_json",
                           "mistral",
                           "mistral_list",
                           "deepseek_v3",
                           "deepseek_v31",
                           "kimi_k2",
                           "glm45",
                           "qwen3_coder",
                           "openai",
                           "json"}) {
    const AnswerFormats formats =
        choose_answer_formats({}, name, std::string(name) == "openai" ? "openai_gptoss" : "none");
    for (int i = 0; i < 8; ++i) {
      const bool parallel = i % 2 == 0;
      ToolRequest request =
          request_of(with(kTools,
                          parallel ? R"("tool_choice":"required")"
                                   : R"("tool_choice":"required","parallel_tool_calls":false)"),
                     formats);
      request.grammar->end_token_ids = {*test_tokenizer()->eos_id()};
      const std::string text = drawn_text(*engine, *request.grammar, random);
      const auto parser = make_answer_parser(
          {.formats = formats, .functions = request.functions, .parallel = parallel});
      AnswerPieces pieces = parser->push(text);
      pieces.append(parser->finish());
      ASSERT_FALSE(pieces.calls.empty()) << name << ": " << text;
      EXPECT_EQ(pieces.content, "") << name << ": " << text;
      EXPECT_TRUE(parallel || pieces.calls.size() == 1) << text;
      num_parallel += pieces.calls.size() > 1;
      for (const ToolCallPiece& call : pieces.calls) {
        const json arguments = json::parse(call.arguments, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << name << ": " << call.arguments << " of " << text;
        if (call.name == "weather") {
          // Qwen's grammar lets white space stand around a value, which is the value's own there.
          const std::string city = arguments["city"];
          EXPECT_TRUE(city.find("Bern") != std::string::npos ||
                      city.find("Rome") != std::string::npos)
              << text;
          EXPECT_TRUE(city.size() == 4 || formats.tool_calls->style == ArgumentStyle::kQwenXml)
              << text;
          EXPECT_TRUE(arguments["days"].is_number_integer()) << text;
        } else {
          EXPECT_EQ(call.name, "stop") << text;
        }
      }
    }
  }
  EXPECT_GT(num_parallel, 0) << "no answer had two calls";
}

class ToolCalls : public HttpFixture {
 protected:
  void serve(const std::string& tool_calls, const std::string& reasoning) {
    answer_formats = choose_answer_formats("tools", tool_calls, reasoning);
    make_service(true, GrammarEngine::is_built() ? test_engine() : nullptr);
  }
  static std::string body(const std::string& rest = "") {
    return R"({"messages":[{"role":"user","content":"a"}],)" + std::string(kTools) + rest + "}";
  }
};

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kAnswer =
    "<think>\nWhich?\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": "
    "{\"city\": \"Bern\", \"days\": 2}}\n</tool_call>";

TEST_F(ToolCalls, AnAnswerHasItsPartsApart) {
  serve("hermes", "qwen3");
  play(kAnswer);
  const json out = post_json(kChat, body());
  const json choice = out["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  // The mark at its end, up to its last token, and no more.
  const size_t num_reasoning = ids_of("<think>\nWhich?\n</think").size();
  EXPECT_NEAR(out["usage"]["completion_tokens_details"]["reasoning_tokens"].get<double>(),
              static_cast<double>(num_reasoning),
              7);
  EXPECT_EQ(choice["message"]["reasoning_content"], "Which?");
  EXPECT_EQ(choice["message"]["reasoning"], "Which?");
  EXPECT_EQ(choice["message"]["content"], "I look.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const json call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  EXPECT_EQ(call["function"]["arguments"], "{\"city\": \"Bern\", \"days\": 2}");
  EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
  EXPECT_FALSE(call.contains("index"));
}

TEST_F(ToolCalls, ACallThatWasCutIsNoCall) {
  serve("hermes", "none");
  play(
      "Well.<tool_call>{\"name\": \"stop\", \"arguments\": {}}</tool_call><tool_call>{\"name\": "
      "\"stop\", \"argum");
  const json choice = post_json(kChat, body())["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Well.");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  play("<tool_call>{\"name\": \"weather\", \"argum");
  const json none = post_json(kChat, body())["choices"][0];
  EXPECT_EQ(none["message"]["content"], "");
  EXPECT_FALSE(none["message"].contains("tool_calls"));
  EXPECT_EQ(none["finish_reason"], "stop");
}

TEST_F(ToolCalls, ACallThatAStopStringCutIsNoCall) {
  serve("hermes", "none");
  play("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"END");
  const json choice = post_json(kChat, body(R"(,"stop":"END")"))["choices"][0];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ToolCalls, WrongArgumentsAreTheClientsToSee) {
  serve("hermes", "none");
  play("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": None}}</tool_call>");
  const json choice = post_json(kChat, body())["choices"][0];
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": None}");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST_F(ToolCalls, AStreamAddsUpToTheSameAnswer) {
  serve("hermes", "qwen3");
  play(kAnswer, 1);
  std::string reasoning, content, name, arguments, finish;
  for (const std::string& event : stream(kChat, body(R"(,"stream":true)"))) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    const json& delta = choice["delta"];
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
    for (const json& call : delta.value("tool_calls", json::array())) {
      EXPECT_EQ(call["index"], 0);
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    EXPECT_FALSE(delta.empty() && !choice["finish_reason"].is_string()) << "a chunk says nothing";
  }
  EXPECT_EQ(reasoning, "Which?");
  EXPECT_EQ(content, "I look.");
  EXPECT_EQ(name, "weather");
  EXPECT_EQ(arguments, "{\"city\": \"Bern\", \"days\": 2}");
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(ToolCalls, WithoutToolsTheTextOfACallIsContent) {
  serve("hermes", "none");
  play("<tool_call>{\"name\": \"weather\"}</tool_call>");
  const json none = post_json(kChat, body(R"(,"tool_choice":"none")"))["choices"][0];
  EXPECT_EQ(none["message"]["content"], "<tool_call>{\"name\": \"weather\"}</tool_call>");
  EXPECT_FALSE(none["message"].contains("tool_calls"));
  EXPECT_EQ(none["finish_reason"], "stop");
}

TEST_F(ToolCalls, ReasoningIsLeftOutOrInTheTextAsAsked) {
  serve("hermes", "qwen3");
  play("<think>a</think>b");
  const auto message = [&](const std::string& rest) {
    return post_json(kChat, body(rest))["choices"][0]["message"];
  };
  EXPECT_EQ(message("")["reasoning_content"], "a");
  const json without = message(R"(,"include_reasoning":false)");
  EXPECT_TRUE(!without.contains("reasoning_content") && without["content"] == "b");
  for (const char* rest : {R"(,"reasoning_format":"none")", R"(,"separate_reasoning":false)"}) {
    EXPECT_EQ(message(rest)["content"], "<think>a</think>b") << rest;
  }
  post_json(kChat, body(R"(,"reasoning_format":"some")"), 400);
}

TEST_F(ToolCalls, OtherDialectsHaveThemToo) {
  serve("hermes", "qwen3");
  play(kAnswer);
  const json response =
      post_json("/v1/responses",
                R"({"input":"a","tools":[{"type":"function","name":"weather","parameters":{}}]})");
  ASSERT_EQ(response["output"].size(), 3u) << response;
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(response["output"][2]["type"], "function_call");
  EXPECT_EQ(response["output"][2]["name"], "weather");
  const json message = post_json("/v1/messages",
                                 R"({"max_tokens":200,"messages":[{"role":"user","content":"a"}],
          "tools":[{"name":"weather","input_schema":{"type":"object"}}]})");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["content"][2]["input"], json::parse(R"({"city":"Bern","days":2})"));
}

// The grammar of a forced call, or of a document, is about what follows the reasoning.
TEST_F(ToolCalls, GrammarsBeginBehindTheReasoning) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  serve("hermes", "qwen3");
  for (const char* rest :
       {R"(,"tool_choice":"required")", R"(,"response_format":{"type":"json_object"})"})
    post_json(kChat, body(rest));
  ASSERT_EQ(engine.submitted().size(), 2u);
  for (const Request& request : engine.submitted()) {
    const ReasoningTokens& reasoning = request.params.grammar->reasoning;
    EXPECT_EQ(reasoning.begin, ids_of("<think>"));
    EXPECT_EQ(reasoning.end, ids_of("</think>"));
    EXPECT_FALSE(reasoning.is_begun);
    EXPECT_EQ(request.params.grammar->kind, GrammarKind::kStructuralTag) << "a call may come";
  }
}

// gpt-oss's prompts end with what ends a message, its reasoning too: that begins every answer.
TEST_F(ToolCalls, HarmonysAnswersBeginWithTheirReasoning) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  template_source = "{{ messages[0]['content'] }}<|end|><|start|>assistant";
  serve("openai", "openai_gptoss");
  for (const char* rest :
       {R"(,"tool_choice":"required")", R"(,"response_format":{"type":"json_object"})"})
    post_json(kChat, body(rest));
  ASSERT_EQ(engine.submitted().size(), 2u);
  for (const Request& request : engine.submitted())
    EXPECT_FALSE(request.params.grammar->reasoning.end.empty());
}

TEST_F(ToolCalls, HarmonysCallsAreFoundWhereReasoningStaysInTheText) {
  serve("openai", "openai_gptoss");
  play(
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}");
  const json message =
      post_json(kChat, body(R"(,"reasoning_format":"none")"))["choices"][0]["message"];
  EXPECT_EQ(message["content"], "hm");
  EXPECT_FALSE(message.contains("reasoning_content"));
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "weather");
}

TEST_F(ToolCalls, ATemplateWithoutAPlaceForThemIsWarnedOf) {
  answer_formats = choose_answer_formats("no place", "hermes", "none");
  make_service(true);
  EXPECT_EQ(post_json(kChat, body())["warnings"].size(), 1u);
}

}  // namespace
}  // namespace outrider::testing
