// Bodies of the two generation endpoints: defaults, every range, what is refused and with which
// param.
#include "http/api/openai_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

class OpenAiRequest : public ::testing::Test {
 protected:
  OpenAiRequest() {
    info.served_model_name = "m";
    info.model_root = "/models/m";
    info.max_model_len = 100;
    info.vocab_size = 50;
  }

  // `fields` are added to a minimal body.
  CompletionCall completion(const std::string& fields) {
    return read_completion_call("{\"prompt\":\"a\"" + (fields.empty() ? "" : "," + fields) + "}",
                                {info, defaults, limits, end_ids, formats});
  }
  CompletionCall chat(const std::string& fields,
                      const std::string& messages = R"([{"role":"user","content":"hi"}])") {
    return read_chat_call("{\"messages\":" + messages + (fields.empty() ? "" : "," + fields) + "}",
                          {info, defaults, limits, end_ids, formats});
  }

  template <typename Action>
  std::string fault(const Action& action, int status = 400) {
    try {
      action();
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), status) << error.what();
      EXPECT_FALSE(std::string(error.what()).empty());
      return error.param();
    }
    return "accepted";
  }
  std::string completion_fault(const std::string& fields) {
    return fault([&] { completion(fields); });
  }
  std::string chat_fault(const std::string& fields) {
    return fault([&] { chat(fields); });
  }
  std::string messages_fault(const std::string& messages) {
    return fault([&] { chat("", messages); });
  }

  EngineInfo info;
  GenerationDefaults defaults;
  CallLimits limits;
  AnswerFormats formats = choose_answer_formats({}, "auto", "auto");
  std::vector<int32_t> end_ids = {7, 9};
};

TEST_F(OpenAiRequest, Defaults) {
  const CompletionCall call = completion("");
  EXPECT_EQ(call.params.temperature, 1.0f);
  EXPECT_EQ(call.params.top_p, 1.0f);
  EXPECT_EQ(call.params.num_logprobs, -1);
  EXPECT_EQ(call.params.stop_token_ids, end_ids);
  EXPECT_EQ(call.params.max_draft_len, -1);
  EXPECT_FALSE(call.params.seed);
  EXPECT_FALSE(call.max_tokens);
  EXPECT_TRUE(call.add_special_tokens);
  EXPECT_FALSE(chat("").add_special_tokens);
  EXPECT_EQ(call.num_choices, 1);
}

TEST_F(OpenAiRequest, GenerationConfigFillsWhatIsLeftOut) {
  defaults.temperature = 0.6f;
  defaults.top_k = 20;
  defaults.top_p = 0.9f;
  defaults.min_p = 0.1f;
  defaults.repetition_penalty = 1.1f;
  const SamplingParams left_out = completion("\"temperature\":null").params;
  EXPECT_EQ(left_out.temperature, 0.6f);
  EXPECT_EQ(left_out.top_k, 20);
  EXPECT_EQ(left_out.top_p, 0.9f);
  EXPECT_EQ(left_out.min_p, 0.1f);
  EXPECT_EQ(left_out.repetition_penalty, 1.1f);
  const SamplingParams given =
      completion(R"("temperature":0,"top_k":-1,"top_p":1,"min_p":0,"repetition_penalty":1)").params;
  EXPECT_EQ(given.temperature, 0.0f);
  EXPECT_EQ(given.top_k, 0);
  EXPECT_EQ(given.top_p, 1.0f);
  EXPECT_EQ(given.min_p, 0.0f);
  EXPECT_EQ(given.repetition_penalty, 1.0f);
}

TEST_F(OpenAiRequest, RangesNameTheirParameter) {
  for (const char* pair : {"temperature:-0.1",
                           "temperature:2.1",
                           "temperature:true",
                           "temperature:\"1\"",
                           "top_p:0",
                           "top_p:1.1",
                           "top_p:-1",
                           "top_k:-2",
                           "top_k:1.5",
                           "min_p:-0.1",
                           "min_p:1.1",
                           "typical_p:0",
                           "typical_p:1.1",
                           "typical_p:-0.5",
                           "typical_p:\"0.5\"",
                           "allowed_token_ids:[]",
                           "allowed_token_ids:[50]",
                           "allowed_token_ids:[-1]",
                           "allowed_token_ids:[1.5]",
                           "allowed_token_ids:[true]",
                           "allowed_token_ids:7",
                           "bad_words:\"x\"",
                           "bad_words:[\"\"]",
                           "bad_words:[5]",
                           "repetition_penalty:0",
                           "repetition_penalty:-1",
                           "presence_penalty:2.1",
                           "frequency_penalty:-2.1",
                           "seed:1.5",
                           "seed:\"1\"",
                           "seed:1e30",
                           "n:0",
                           "n:17",
                           "n:-1",
                           "n:true",
                           "max_tokens:0",
                           "max_tokens:-1",
                           "max_tokens:1.5",
                           "max_tokens:99999999999",
                           "min_tokens:-1",
                           "logprobs:21",
                           "logprobs:-1",
                           "logprobs:true",
                           "logprobs:\"x\"",
                           "stream:1",
                           "echo:\"yes\"",
                           "stop:[1]",
                           "stop:5",
                           "stop:\"\"",
                           "stop_token_ids:[50]",
                           "stop_token_ids:[-1]",
                           "stop_token_ids:5",
                           "logit_bias:[]",
                           "priority:1.5",
                           "truncate_prompt_tokens:0",
                           "truncate_prompt_tokens:-2",
                           "truncate_prompt_tokens:101",
                           "truncation_side:\"top\"",
                           "prompt_logprobs:21",
                           "prompt_logprobs:-1",
                           "prompt_logprobs:true",
                           "cache_salt:5",
                           "cache_prompt:1",
                           "n_predict:0",
                           "n_predict:-2",
                           "repeat_penalty:0",
                           "ignore_eos:0",
                           "user:5"}) {
    const std::string text = pair;
    const size_t colon = text.find(':');
    const std::string name = text.substr(0, colon);
    EXPECT_EQ(completion_fault("\"" + name + "\":" + text.substr(colon + 1)), name) << pair;
  }
  EXPECT_EQ(chat_fault(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs");
  EXPECT_EQ(chat_fault(R"("top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(chat_fault(R"("logprobs":5)"), "logprobs");
  EXPECT_EQ(chat_fault(R"("max_completion_tokens":0)"), "max_completion_tokens");
  EXPECT_EQ(completion_fault(R"("max_tokens":4,"min_tokens":5)"), "min_tokens");
}

TEST_F(OpenAiRequest, LogitBias) {
  const SamplingParams params = completion(R"("logit_bias":{"10":-100,"2":100,"0":0.5})").params;
  const std::vector<std::pair<int32_t, float>> expected = {{0, 0.5f}, {2, 100.f}, {10, -100.f}};
  EXPECT_EQ(params.logit_bias, expected);
  for (const char* bias : {R"({"50":1})",
                           R"({"-1":1})",
                           R"({"01":1})",
                           R"({"x":1})",
                           R"({"":1})",
                           R"({"99999999999999":1})",
                           R"({"1.0":1})"}) {
    EXPECT_EQ(completion_fault(std::string("\"logit_bias\":") + bias), "logit_bias") << bias;
  }
  EXPECT_EQ(completion_fault(R"("logit_bias":{"1":101})"), "logit_bias.1");
  EXPECT_EQ(completion_fault(R"("logit_bias":{"1":"5"})"), "logit_bias.1");
}

TEST_F(OpenAiRequest, Stops) {
  EXPECT_EQ(completion(R"("stop":"x")").stop, std::vector<std::string>{"x"});
  EXPECT_EQ(completion(R"("stop":["x","y"])").stop.size(), 2u);
  const CompletionCall call = completion(R"("stop_token_ids":[9,3])");
  EXPECT_EQ(call.params.stop_token_ids, (std::vector<int32_t>{3, 7, 9}));
  EXPECT_EQ(call.user_stop_token_ids, (std::vector<int32_t>{9, 3}));
  EXPECT_EQ(completion(R"("stop_token_ids":[3],"ignore_eos":true)").params.stop_token_ids,
            std::vector<int32_t>{3});
  std::string many = "\"a\"";
  for (int i = 0; i < 16; ++i) many += ",\"a\"";
  EXPECT_EQ(completion_fault("\"stop\":[" + many + "]"), "stop");
  EXPECT_EQ(completion_fault("\"stop\":\"" + std::string(257, 'a') + "\""), "stop");
}

TEST_F(OpenAiRequest, MasksAndTypicalP) {
  for (const bool is_chat : {false, true}) {
    const std::string fields =
        R"("allowed_token_ids":[9,3,9,0],"bad_words":["x"," yes"],"typical_p":0.25)";
    const CompletionCall call = is_chat ? chat(fields) : completion(fields);
    EXPECT_EQ(call.params.allowed_token_ids, (std::vector<int32_t>{0, 3, 9}));
    EXPECT_EQ(call.bad_words, (std::vector<std::string>{"x", " yes"}));
    EXPECT_EQ(call.params.typical_p, 0.25f);
    const CompletionCall off = is_chat ? chat("") : completion(R"("allowed_token_ids":null)");
    EXPECT_TRUE(off.params.allowed_token_ids.empty());
    EXPECT_TRUE(off.bad_words.empty());
    EXPECT_EQ(off.params.typical_p, 1.0f);
  }
  EXPECT_TRUE(completion(R"("bad_words":[])").bad_words.empty());
}

TEST_F(OpenAiRequest, ABadWordAfterASpaceMayHaveAnotherNumberOfTokens) {
  const auto tokenizer =
      Tokenizer::load(std::string(OUTRIDER_SOURCE_DIR) + "/models/embedded/target");
  const auto after_space = tokenizer->encode(" was", {.add_special_tokens = false});
  const auto alone = tokenizer->encode("was", {.add_special_tokens = false});
  ASSERT_EQ(after_space.size(), 1u);
  ASSERT_GT(alone.size(), 1u);
  const auto sequences = encode_bad_words({"was"}, *tokenizer);
  EXPECT_EQ(sequences.size(), 2u);
  EXPECT_EQ(std::count(sequences.begin(), sequences.end(), after_space), 1);
  EXPECT_EQ(std::count(sequences.begin(), sequences.end(), alone), 1);
}

TEST_F(OpenAiRequest, ListsHaveLimits) {
  info.vocab_size = 100000;
  const auto list_of = [](size_t count, const std::string& item) {
    std::string list = item;
    for (size_t i = 1; i < count; ++i) list += "," + item;
    return "[" + list + "]";
  };
  const auto fault_of = [&](const std::string& name, size_t count, const std::string& item) {
    return completion_fault("\"" + name + "\":" + list_of(count, item));
  };
  EXPECT_EQ(fault_of("allowed_token_ids", limits.max_allowed_token_ids, "7"), "accepted");
  EXPECT_EQ(fault_of("allowed_token_ids", limits.max_allowed_token_ids + 1, "7"),
            "allowed_token_ids");
  EXPECT_EQ(fault_of("bad_words", limits.max_bad_words, R"("no")"), "accepted");
  EXPECT_EQ(fault_of("bad_words", limits.max_bad_words + 1, R"("no")"), "bad_words");
  EXPECT_EQ(fault_of("bad_words", 1, "\"" + std::string(256, 'x') + "\""), "accepted");
  EXPECT_EQ(fault_of("bad_words", 1, "\"" + std::string(257, 'x') + "\""), "bad_words");
  EXPECT_EQ(fault_of("stop_token_ids", limits.max_stop_token_ids, "7"), "accepted");
  EXPECT_EQ(fault_of("stop_token_ids", limits.max_stop_token_ids + 1, "7"), "stop_token_ids");
}

TEST_F(OpenAiRequest, SpeculationOfARequest) {
  EXPECT_EQ(completion(R"("speculative":{"enabled":false})").params.max_draft_len, 0);
  EXPECT_EQ(completion(R"("speculative":{"num_speculative_tokens":3})").params.max_draft_len, 3);
  EXPECT_EQ(completion(R"("speculative":{"enabled":true})").params.max_draft_len, -1);
  EXPECT_EQ(completion(R"("speculative":{"verify_mode":"coupled"})").params.verify_mode,
            VerifyMode::kCoupled);
  EXPECT_EQ(completion(R"("speculative":{"verify_mode":"standard"})").params.verify_mode,
            VerifyMode::kStandard);
  EXPECT_EQ(completion(R"("speculative":{"verify_mode":"block"})").params.verify_mode,
            VerifyMode::kBlock);
  EXPECT_EQ(completion(R"("speculative":{"enabled":true})").params.verify_mode, VerifyMode::kAuto);
  EXPECT_EQ(completion_fault(R"("speculative":{"verify_mode":"x"})"), "speculative.verify_mode");
  EXPECT_EQ(completion(R"("speculative":{"async_drafting":"chain"})").params.async_drafting,
            AsyncDrafting::kChain);
  EXPECT_EQ(completion(R"("speculative":{})").params.async_drafting, AsyncDrafting::kAuto);
  EXPECT_EQ(completion_fault(R"("speculative":{"async_drafting":"far"})"),
            "speculative.async_drafting");
  EXPECT_TRUE(
      completion(R"("speculative":{"fixed_num_speculative_tokens":true})").params.fixed_draft_len);
  EXPECT_FALSE(completion(R"("speculative":{})").params.fixed_draft_len);
  EXPECT_EQ(completion_fault(R"("speculative":{"k":1})"), "speculative.k");
  EXPECT_EQ(completion_fault(R"("speculative":true)"), "speculative");
}

TEST_F(OpenAiRequest, SeedsKeepAllTheirBits) {
  EXPECT_EQ(completion("\"seed\":-2").params.seed, ~1ull);
  EXPECT_EQ(completion("\"seed\":9223372036854775807").params.seed, 9223372036854775807ull);
}

TEST_F(OpenAiRequest, WhatIsKnownButNotDoneIsRefused) {
  EXPECT_EQ(completion_fault(R"("suffix":"x")"), "suffix");
  EXPECT_EQ(completion_fault(R"("best_of":2)"), "best_of");
  EXPECT_EQ(completion_fault(R"("use_beam_search":true)"), "use_beam_search");
  EXPECT_EQ(chat_fault(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(chat_fault(R"("tool_choice":{"type":"function"})"), "tool_choice");
  EXPECT_EQ(chat_fault(R"("chat_template":"x")"), "chat_template");
  EXPECT_EQ(chat_fault(R"("functions":[{"name":"f"}])"), "functions");
  EXPECT_EQ(completion_fault(R"("stream_options":{"include_usage":true})"), "stream_options");
  // Off is fine.
  completion(
      R"("suffix":null,"best_of":1,"use_beam_search":false,"response_format":{"type":"text"})");
  completion(R"("repeat_penalty":1.0,"mirostat":0,"top_n_sigma":-1,"n_predict":-1,"grammar":"")");
  chat(R"("tool_choice":"auto","functions":[],"continue_final_message":false)");
}

// Other servers' fields that would change the answer.
TEST_F(OpenAiRequest, OtherServersFieldsAreRefused) {
  for (const char* field : {R"("format":"json")",
                            R"("n_probs":3)",
                            R"("samplers":["top_k"])",
                            R"("mirostat":2)",
                            R"("dry_multiplier":0.8)",
                            R"("xtc_probability":0.5)",
                            R"("lora":[{"id":0}])"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find(':') - 2);
    EXPECT_EQ(completion_fault(field), name);
    EXPECT_EQ(chat_fault(field), name);
  }
  try {
    completion(R"("n_probs":5)");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_STREQ(error.what(), "'n_probs' is not supported: use 'logprobs'");
  }
}

TEST_F(OpenAiRequest, LlamaCppsNamesMeanOurs) {
  EXPECT_EQ(completion(R"("n_predict":5)").max_tokens, 5);
  EXPECT_EQ(chat(R"("n_predict":5,"max_tokens":6)").max_tokens, 6);
  EXPECT_EQ(completion(R"("max_completion_tokens":7)").max_tokens, 7);
  EXPECT_FALSE(completion(R"("n_predict":-1)").max_tokens);
  EXPECT_EQ(completion(R"("repeat_penalty":1.25)").params.repetition_penalty, 1.25f);
  EXPECT_EQ(
      completion(R"("repeat_penalty":1.25,"repetition_penalty":1.5)").params.repetition_penalty,
      1.5f);
  // A window matters only to penalties.
  completion(R"("repeat_last_n":64,"repeat_penalty":1)");
  completion(R"("repeat_last_n":-1,"repeat_penalty":1.1)");
  EXPECT_EQ(completion_fault(R"("repeat_last_n":64,"presence_penalty":1)"), "repeat_last_n");
}

TEST_F(OpenAiRequest, WhatChangesNoTextIsTakenWithoutAWord) {
  limits.strict_params = true;
  completion(
      R"("timings_per_token":true,"return_progress":true,"cache_prompt":true,"id_slot":-1,"n_keep":0,"stream_interval":4)");
  chat(
      R"("dry_multiplier":0,"dry_base":1.75,"xtc_probability":0,"xtc_threshold":0.1,"mirostat":0,"mirostat_tau":5)");
}

TEST_F(OpenAiRequest, NumberOfChoices) {
  limits.max_choices = 40;
  EXPECT_EQ(completion(R"("n":40)").num_choices, 40);
  EXPECT_EQ(completion(R"("n":2.0)").num_choices, 2);
  EXPECT_EQ(completion_fault(R"("n":41)"), "n");
}

TEST_F(OpenAiRequest, RequestIdIsTakenOrRefused) {
  EXPECT_EQ(completion(R"("request_id":"a-1.b_2")").request_id, "a-1.b_2");
  EXPECT_EQ(completion_fault(R"("request_id":"a b")"), "request_id");
  EXPECT_EQ(completion_fault(R"("request_id":7)"), "request_id");
}

TEST_F(OpenAiRequest, UnknownFieldsAreToldOrRefused) {
  const std::vector<std::string> expected = {
      "unknown parameter \"max_token\" (did you mean 'max_tokens'?) was ignored",
      "unknown parameter \"zzzzzzzz\" was ignored"};
  EXPECT_EQ(completion(R"("max_token":1,"zzzzzzzz":2)").warnings, expected);
  EXPECT_TRUE(completion(R"("user":"u","metadata":{})").warnings.empty());
  limits.strict_params = true;
  EXPECT_EQ(completion_fault(R"("foo":1)"), "foo");
}

TEST_F(OpenAiRequest, ModelName) {
  completion(R"("model":"m")");
  completion(R"("model":"/models/m")");
  EXPECT_EQ(fault([&] { completion(R"("model":"other")"); }, 404), "model");
  EXPECT_EQ(completion_fault(R"("model":5)"), "model");
}

TEST_F(OpenAiRequest, ChatMessagesBecomeTemplateInputs) {
  const auto inputs = [&](const std::string& messages, const std::string& fields = "") {
    return nlohmann::json::parse(chat(fields, messages).template_inputs);
  };
  const auto joined = inputs(
      R"([{"role":"developer","content":"s"},{"role":"user","name":"Al","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  EXPECT_EQ(joined["messages"][0]["role"], "system");
  EXPECT_EQ(joined["messages"][1]["content"], "a\nb");
  EXPECT_EQ(joined["messages"][1]["name"], "Al");
  EXPECT_EQ(joined["add_generation_prompt"], true);
  EXPECT_FALSE(joined.contains("tools"));
  const auto tools = inputs(
      R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"c1","content":"r"}])",
      R"("tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}],"chat_template_kwargs":{"enable_thinking":false})");
  EXPECT_EQ(tools["messages"][0]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(tools["messages"][0]["content"], "");
  EXPECT_EQ(tools["messages"][1]["tool_call_id"], "c1");
  EXPECT_EQ(tools["tools"][0]["function"]["name"], "f");
  EXPECT_EQ(tools["enable_thinking"], false);
}

TEST_F(OpenAiRequest, PartsOfOtherHistoriesAreTexts) {
  const std::string call = chat("",
                                R"([{"role":"user","content":[{"type":"input_text","text":"a"}]},
               {"role":"assistant","content":[{"type":"output_text","text":"b"},{"type":"refusal","refusal":"c"}]},
               {"role":"assistant","content":null,"refusal":"d"},{"role":"assistant"}])")
                               .template_inputs;
  const auto messages = nlohmann::json::parse(call)["messages"];
  const char* const expected[] = {"a", "b\nc", "d", ""};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(messages[i]["content"], expected[i]);
}

TEST_F(OpenAiRequest, BadMessages) {
  EXPECT_EQ(messages_fault("[]"), "messages");
  EXPECT_EQ(messages_fault("null"), "messages");
  EXPECT_EQ(messages_fault("\"hi\""), "messages");
  EXPECT_EQ(messages_fault("[5]"), "messages");
  EXPECT_EQ(messages_fault(R"([{"role":"king","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(messages_fault(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(messages_fault(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(messages_fault(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(messages_fault(R"([{"role":"user","content":null}])"), "messages[0].content");
  EXPECT_EQ(
      messages_fault(
          R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}])"),
      "messages[0].content[0]");
  EXPECT_EQ(messages_fault(R"([{"role":"assistant","tool_calls":[{"id":"x"}]}])"),
            "messages[0].tool_calls[0].function");
}

TEST_F(OpenAiRequest, TemplateSwitchesArePlainAndOurOwnStay) {
  EXPECT_EQ(chat_fault(R"("chat_template_kwargs":{"messages":"x"})"),
            "chat_template_kwargs.messages");
  EXPECT_EQ(chat_fault(R"("chat_template_kwargs":{"bos_token":"x"})"),
            "chat_template_kwargs.bos_token");
  EXPECT_EQ(chat_fault(R"("chat_template_kwargs":{"a":[1]})"), "chat_template_kwargs.a");
  EXPECT_EQ(chat_fault("\"chat_template_kwargs\":{\"a\":\"" + std::string(300, 'x') + "\"}"),
            "chat_template_kwargs.a");
}

}  // namespace
}  // namespace outrider
