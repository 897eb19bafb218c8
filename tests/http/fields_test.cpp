// Fields and endpoints that vLLM and llama.cpp have beside OpenAI's: scores of the prompt, messages
// that are continued or echoed, cache salts, truncation, the text of a chat's prompt.
#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

using Fields = HttpFixture;

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";

// A body with a user's message and one of the assistant's that has begun.
std::string begun_chat(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"I am "}],)" +
         fields + "}";
}

TEST_F(Fields, PromptLogprobsHaveVllmsShape) {
  play("xy");
  const json out = post_json(kCompletions, R"({"prompt":"abc","prompt_logprobs":2})");
  const json& choice = out["choices"][0];
  EXPECT_EQ(choice["text"], "xy");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const json b = {{"98", {{"logprob", -0.5}, {"rank", 1}, {"decoded_token", "b"}}},
                  {"99", {{"logprob", -1.5}, {"rank", 2}, {"decoded_token", "c"}}}};
  ASSERT_EQ(choice["prompt_logprobs"].size(), 3u);
  EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
  EXPECT_EQ(choice["prompt_logprobs"][1], b);
  EXPECT_TRUE(choice["prompt_logprobs"][2].contains("99"));

  const json chat = post_json(
      kChat, R"({"messages":[{"role":"user","content":"hi"}],"prompt_logprobs":0,"n":2})");
  EXPECT_EQ(chat["prompt_logprobs"].size(), engine.submitted().back().prompt.size());
  EXPECT_EQ(chat["prompt_logprobs"][1].size(), 1u);  // the prompt's own token
  EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
}

TEST_F(Fields, LogprobsOfPromptAndAnswerHaveNumbersOfTheirOwn) {
  play("xy");
  for (const auto& [of_prompt, of_answer] : {std::pair(2, 1), std::pair(0, 2), std::pair(1, 0)}) {
    const std::string body = fmt::format(
        R"({{"prompt":"abc","prompt_logprobs":{},"logprobs":{}}})", of_prompt, of_answer);
    const json choice = post_json(kCompletions, body)["choices"][0];
    EXPECT_EQ(choice["prompt_logprobs"][1].size(), std::max<size_t>(of_prompt, 1)) << body;
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), std::max<size_t>(of_answer, 1)) << body;
  }
  const json echoed =
      post_json(kCompletions,
                R"({"prompt":"abc","echo":true,"logprobs":0,"prompt_logprobs":1,"max_tokens":0})");
  EXPECT_EQ(echoed["choices"][0]["prompt_logprobs"].size(), 3u);
  EXPECT_EQ(echoed["choices"][0]["logprobs"]["tokens"], (json{"a", "b", "c"}));
}

TEST_F(Fields, APromptIsScoredOnceForAllItsChoices) {
  const json out =
      post_json(kCompletions, R"({"prompt":["ab","cd"],"n":2,"prompt_logprobs":0})")["choices"];
  for (size_t i : {0, 1}) EXPECT_TRUE(out[i]["prompt_logprobs"][1].contains("98"));
  for (size_t i : {2, 3}) EXPECT_TRUE(out[i]["prompt_logprobs"][1].contains("100"));
  std::vector<bool> scored;
  for (const Request& request : engine.submitted())
    scored.push_back(request.params.prompt_logprobs);
  EXPECT_EQ(scored, (std::vector<bool>{true, false, true, false}));
}

TEST_F(Fields, PromptLogprobsAreRefusedInStreams) {
  const json out =
      post_json(kCompletions, R"({"prompt":"abc","prompt_logprobs":0,"stream":true})", 400);
  EXPECT_EQ(out["error"]["param"], "prompt_logprobs");
}

TEST_F(Fields, AMessageIsContinued) {
  const json out = post_json(kChat, begun_chat(R"("continue_final_message":true)"));
  EXPECT_EQ(out["choices"][0]["message"]["content"], "hello world, this is text");
  EXPECT_EQ(out["choices"][0]["message"]["role"], "assistant");
  const std::string prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI am ";
  EXPECT_EQ(test_tokenizer()->decode(engine.submitted()[0].prompt, false), prompt);
  const json tokens =
      post_json("/tokenize", begun_chat(R"("continue_final_message":true)"))["tokens"];
  EXPECT_EQ(tokens, json(engine.submitted()[0].prompt));
  const json both = post_json(
      kChat, begun_chat(R"("continue_final_message":true,"add_generation_prompt":true)"), 400);
  EXPECT_EQ(both["error"]["param"], "continue_final_message");
}

// As with vLLM: the message comes first where it is of the role that answers.
TEST_F(Fields, AnEchoedMessageComesBeforeTheAnswer) {
  const auto content = [&](const std::string& fields) {
    return post_json(kChat, begun_chat(fields))["choices"][0]["message"];
  };
  const std::string answer = "hello world, this is text";
  const std::string continues = R"(,"continue_final_message":true,"stop":"am")";
  EXPECT_EQ(content(R"("echo":true)" + continues)["content"], "I am " + answer);
  EXPECT_EQ(content(R"("echo":false)" + continues)["content"], answer);
  EXPECT_EQ(content(R"("echo":true)")["content"], "I am " + answer);
  const json user = post_json(
      kChat,
      R"({"messages":[{"role":"user","content":"hi "}],"echo":true,"add_generation_prompt":false})");
  EXPECT_EQ(user["choices"][0]["message"]["role"], "user");
  EXPECT_EQ(user["choices"][0]["message"]["content"], "hi " + answer);
  const json other =
      post_json(kChat, R"({"messages":[{"role":"user","content":"hi "}],"echo":true})");
  EXPECT_EQ(other["choices"][0]["message"]["content"], answer);
  std::string streamed;
  for (const std::string& event :
       stream(kChat, begun_chat(R"("echo":true,"stream":true)" + continues))) {
    if (event == "[DONE]") break;
    streamed += json::parse(event)["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, "I am " + answer);
}

TEST_F(Fields, AContinuedMessageMayBeWithinItsReasoning) {
  answer_formats = choose_answer_formats("tools", "hermes", "qwen3");
  make_service(true);
  play("mm</think>b");
  const auto message = [&](const std::string& begun) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"<think>"},{"role":"assistant","content":)" +
        json(begun).dump() + R"(}],"continue_final_message":true,"echo":true})";
    return post_json(kChat, body)["choices"][0]["message"];
  };
  const json within = message("<think>h");
  EXPECT_EQ(within["reasoning_content"], "mm");
  EXPECT_EQ(within["content"], "<think>hb");
  EXPECT_FALSE(message("<think>h</think>a").contains("reasoning_content"));
  EXPECT_FALSE(message("a").contains("reasoning_content"));
}

TEST_F(Fields, AnEchoShowsTheSpecialTokensOfThePrompt) {
  play("xy");
  const int32_t im_end = *test_tokenizer()->token_id("<|im_end|>");
  const json out = post_json(
      kCompletions, fmt::format(R"({{"prompt":[{},97],"echo":true,"logprobs":0}})", im_end));
  EXPECT_EQ(out["choices"][0]["text"], "<|im_end|>axy");
  EXPECT_EQ(out["choices"][0]["logprobs"]["text_offset"], (json{0, 10, 11, 12}));
  const json text = post_json(kCompletions, R"({"prompt":"<|im_end|>a","echo":true})");
  EXPECT_EQ(text["choices"][0]["text"], "<|im_end|>axy");
}

// vLLM's name, and gpt-oss's.
TEST_F(Fields, ReasoningOfEarlierTurnsReachesTheTemplate) {
  template_source = "{% for m in messages %}{{ m['reasoning_content'] }}{% endfor %}";
  make_service(true);
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    post_json("/v1/chat/completions",
              R"({"messages":[{"role":"assistant","content":"a",")" + std::string(name) +
                  R"(":"why"}]})");
    EXPECT_EQ(engine.submitted().back().prompt, ids_of("why")) << name;
  }
}

TEST_F(Fields, SaltsReachTheEngine) {
  const auto salt = [&](const std::string& fields) {
    post_json(kCompletions, R"({"prompt":"abc")" + fields + "}");
    return engine.submitted().back().cache_salt;
  };
  EXPECT_EQ(salt(""), "");
  EXPECT_EQ(salt(R"(,"cache_salt":"","cache_prompt":true)"), "");
  EXPECT_EQ(salt(R"(,"cache_salt":"a")"), salt(R"(,"cache_salt":"a")"));
  EXPECT_NE(salt(R"(,"cache_salt":"a")"), salt(R"(,"cache_salt":"b")"));
  EXPECT_NE(salt(R"(,"cache_prompt":false)"), salt(R"(,"cache_prompt":false)"));
  const std::string of_one = salt(R"(,"cache_prompt":false)");
  EXPECT_NE(salt(R"(,"cache_salt":)" + json(of_one).dump()), of_one);
  for (const char* path : {"/v1/messages", "/v1/responses"}) {
    post_json(
        path,
        R"({"input":"x","cache_salt":"a","messages":[{"role":"user","content":"x"}],"max_tokens":5})");
    EXPECT_EQ(engine.submitted().back().cache_salt, salt(R"(,"cache_salt":"a")")) << path;
  }
  const std::string long_salt(1025, 's');
  post_json(kCompletions, R"({"prompt":"abc","cache_salt":")" + long_salt + "\"}", 400);
}

TEST_F(Fields, KeysOfVllmAreThereAndNull) {
  const json completion = post_json(kCompletions, R"({"prompt":"abc"})");
  const json chat = post_json(kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  for (const json& out : {completion, chat}) {
    EXPECT_EQ(out["system_fingerprint"], "fp-test");
    for (const char* key : {"service_tier", "kv_transfer_params"}) {
      ASSERT_TRUE(out.contains(key)) << key;
      EXPECT_TRUE(out[key].is_null()) << key;
    }
    EXPECT_TRUE(out["choices"][0].at("token_ids").is_null());
  }
  for (const json& out : {completion["choices"][0], chat}) {
    EXPECT_TRUE(out.at("prompt_logprobs").is_null());
    EXPECT_TRUE(out.at("prompt_token_ids").is_null());
  }
  const auto events = stream(kCompletions, R"({"prompt":"abc","stream":true})");
  EXPECT_EQ(json::parse(events[0])["system_fingerprint"], "fp-test");
}

TEST_F(Fields, NoUsageMeansNone) {
  const auto usages = [&](const std::string& asked) {
    int number = 0;
    for (const std::string& event :
         stream(kCompletions, R"({"prompt":"a","stream":true,"stream_options":)" + asked + "}")) {
      number += event != "[DONE]" && json::parse(event).value("usage", json()).is_object();
    }
    return number;
  };
  EXPECT_EQ(usages(R"({"include_usage":false,"continuous_usage_stats":true})"), 0);
  EXPECT_EQ(usages(R"({"include_usage":true})"), 1);
  // How many chunks there are is up to the threads.
  EXPECT_GE(usages(R"({"include_usage":true,"continuous_usage_stats":true})"), 2);
  EXPECT_GE(usages(R"({"continuous_usage_stats":true})"), 1);
}

TEST_F(Fields, TheTokenItselfIsFirstOfTheLegacyTop) {
  play("b");
  const ServerResponse reply = post(kCompletions, R"({"prompt":"a","logprobs":2})");
  const auto out = nlohmann::ordered_json::parse(reply.body);
  const auto& top = out["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(top.begin().key(), "b");
  EXPECT_EQ(top.size(), 2u);
}

TEST_F(Fields, PromptsAreTruncatedOnEitherSide) {
  const auto prompt = [&](const std::string& fields) {
    post_json(kCompletions, R"({"prompt":"abcdef",)" + fields + "}");
    return test_tokenizer()->decode(engine.submitted().back().prompt, false);
  };
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":2)"), "ef");
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":2,"truncation_side":"right")"), "ab");
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":-1)"), "abcdef");
  EXPECT_EQ(prompt(R"("truncate_prompt_tokens":-1,"max_tokens":508)"), "cdef");
  const std::string user(600, 'a');
  post_json(
      kChat,
      R"({"truncate_prompt_tokens":-1,"messages":[{"role":"user","content":")" + user + "\"}]}");
  EXPECT_EQ(engine.submitted().back().prompt.size(), 511u);
  EXPECT_EQ(engine.submitted().back().params.max_tokens, 1);
}

TEST_F(Fields, TheTemplateIsApplied) {
  const json out = post_json("/apply-template",
                             R"({"messages":[{"role":"user","content":"h\u00e9 <|im_end|>"}]})");
  EXPECT_EQ(out,
            json({{"prompt",
                   "<|im_start|>user\nh\u00e9 <|im_end|><|im_end|>\n<|im_start|>assistant\n"}}));
  EXPECT_EQ(post_json("/apply-template", begun_chat(R"("continue_final_message":true)"))["prompt"],
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI am ");
  post_json("/apply-template", R"({"messages":[]})", 400);
  EXPECT_EQ(allow_of(get("/apply-template")), "POST");
}

// What a request says of the first tokens of its answer, and the engine's script of the others.
TEST_F(Fields, AnAnswerGoesOnBehindItsFirstTokens) {
  const auto resumed = [](const std::string& text) {
    return R"("resume_token_ids":)" + json(ids_of(text)).dump() + ",";
  };
  play("lo world");
  const json out = post_json(
      kCompletions, "{" + resumed("hel") + R"("prompt":"a","max_tokens":40,"stop":["hello w"]})");
  EXPECT_EQ(engine.submitted()[0].resumed, ids_of("hel"));
  EXPECT_EQ(engine.submitted()[0].params.max_tokens, 40);
  EXPECT_EQ(out["choices"][0]["text"], "") << "the stop string began before";
  EXPECT_EQ(out["choices"][0]["stop_reason"], "hello w");
  EXPECT_EQ(out["usage"]["prompt_tokens"], 1);
  EXPECT_EQ(out["usage"]["completion_tokens"], ids_of("hel").size() + ids_of("lo w").size());
  EXPECT_EQ(
      post_json(kCompletions,
                "{" + resumed("hel") + R"("prompt":"a","max_tokens":40})")["choices"][0]["text"],
      "lo world");
  // Whole already: nothing is asked of the engine.
  const size_t num_asked = engine.submitted().size();
  const std::string length = "{" + resumed("abc") + R"("prompt":"a","max_tokens":)" +
                             std::to_string(ids_of("abc").size()) + "}";
  EXPECT_EQ(post_json(kCompletions, length)["choices"][0]["finish_reason"], "length");
  const json stopped = post_json(
      kCompletions, "{" + resumed("abEND") + R"("prompt":"a","stop":"END","max_tokens":9})");
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(engine.submitted().size(), num_asked);
  for (const char* wrong : {R"("n":2)", R"("echo":true)", R"("prompt":["a","b"])"}) {
    const std::string prompt =
        std::string(wrong).starts_with(R"("prompt)") ? "" : R"("prompt":"a",)";
    post_json(kCompletions, "{" + resumed("a") + prompt + wrong + "}", 400);
  }
}

// A call that was begun goes on with its arguments, and is announced once.
TEST_F(Fields, ACallGoesOnBehindItsFirstTokens) {
  answer_formats = choose_answer_formats("tools", "hermes", "none");
  make_service(true);
  const std::string begun = R"(<tool_call>{"name": "f", "arguments": {"a)";
  play(R"(": 1}}</tool_call>)");
  std::string arguments;
  for (
      const std::string& event : stream(
          kChat,
          R"({"stream":true,"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function",)"
          R"("function":{"name":"f"}}],"resume_token_ids":)" +
              json(ids_of(begun)).dump() + "}")) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    for (const json& call : choice["delta"].value("tool_calls", json::array())) {
      EXPECT_FALSE(call.contains("id")) << call;
      arguments += call["function"]["arguments"];
    }
    EXPECT_TRUE(choice["finish_reason"].is_null() || choice["finish_reason"] == "tool_calls");
  }
  EXPECT_EQ(arguments, R"(": 1})");
}

TEST_F(Fields, AnthropicsClientsMayBeginTheAnswer) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"I am "}])";
  const json out = post_json("/v1/messages", body + R"(,"max_tokens":5})");
  EXPECT_EQ(test_tokenizer()->decode(engine.submitted()[0].prompt, false),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI am ");
  EXPECT_EQ(post_json("/v1/messages/count_tokens", body + "}")["input_tokens"],
            out["usage"]["input_tokens"]);
}

}  // namespace
}  // namespace outrider::testing
