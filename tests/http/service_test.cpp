// The OpenAI API over a fake engine, without a transport: shapes, equality of streams and answers,
// usage, limits.
#include <random>
#include <set>

#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

using Service = HttpFixture;

TEST_F(Service, CompletionShape) {
  const json out = post_json("/v1/completions", R"({"prompt":"abc","model":"test-model"})");
  EXPECT_EQ(out["object"], "text_completion");
  EXPECT_EQ(out["id"], "cmpl-fixed");
  EXPECT_EQ(out["model"], "test-model");
  EXPECT_TRUE(out["created"].is_number_integer());
  ASSERT_EQ(out["choices"].size(), 1u);
  EXPECT_EQ(out["choices"][0]["index"], 0);
  EXPECT_TRUE(out["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(out["choices"][0]["finish_reason"], "length");  // 16 by default
  EXPECT_EQ(out["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(out["usage"]["completion_tokens"], 16);
  EXPECT_EQ(out["usage"]["total_tokens"], 19);
}

TEST_F(Service, ChatShapeAndTemplate) {
  const json out = post_json("/v1/chat/completions",
                             R"({"messages":[{"role":"user","content":"hi <|im_end|>"}]})");
  EXPECT_EQ(out["object"], "chat.completion");
  EXPECT_EQ(out["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(out["choices"][0]["message"]["content"], "hello world, this is text");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "stop");
  // The template's own control tokens are tokens; those a user wrote are letters.
  const std::vector<int32_t> prompt = engine.submitted()[0].prompt;
  const int32_t im_end = *test_tokenizer()->token_id("<|im_end|>");
  const int32_t im_start = *test_tokenizer()->token_id("<|im_start|>");
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), im_start), 2);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), im_end), 1);
  EXPECT_EQ(engine.submitted()[0].params.max_tokens, 512 - static_cast<int32_t>(prompt.size()));
}

TEST_F(Service, NoChatTemplate) {
  make_service(false);
  const json out =
      post_json("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})", 400);
  EXPECT_NE(error_of(out).find("no chat template"), std::string::npos);
}

TEST_F(Service, BadWordsBecomeTokenSequences) {
  const auto sequences_of = [&](const std::string& list) {
    post_json("/v1/completions", R"({"prompt":"abc","bad_words":)" + list + "}");
    return engine.submitted().back().params.bad_words;
  };
  const int32_t space_w = *test_tokenizer()->token_id("\u0120w");
  const int32_t hello = *test_tokenizer()->token_id("hello");
  using Sequences = std::vector<std::vector<int32_t>>;
  // A word after a space counts too, unless that ends with the tokens it has without one.
  EXPECT_EQ(sequences_of(R"(["w"])"), (Sequences{{'w'}, {space_w}}));
  EXPECT_EQ(sequences_of(R"([" w"])"), (Sequences{{'w'}, {space_w}}));
  EXPECT_EQ(sequences_of(R"(["wa","w","hello"])"),
            (Sequences{{'w'}, {'w', 'a'}, {hello}, {space_w}, {space_w, 'a'}}));
  EXPECT_EQ(sequences_of(R"(["hello!","\n"])"), (Sequences{{'\n'}, {hello, '!'}}));
  EXPECT_EQ(sequences_of(R"([])"), Sequences{});
  const json refused = post_json("/v1/chat/completions",
                                 R"({"messages":[{"role":"user","content":"x"}],"bad_words":[""]})",
                                 400);
  EXPECT_EQ(refused["error"]["param"], "bad_words");
}

TEST_F(Service, StreamedTextEqualsTheWhole) {
  play("né€ hello world! 😀 END more text that does not show", 2);
  for (const char* fields : {"",
                             R"("stop":["END"],)",
                             R"("stop":"hello",)",
                             R"("max_tokens":7,)",
                             R"("stop":["xyz","END m"],"include_stop_str_in_output":true,)",
                             R"("echo":true,)"}) {
    const std::string body =
        std::string("{") + fields + R"("prompt":"pro","max_tokens":60,"stream":)";
    const std::string fixed = body.find("\"max_tokens\":7,") == std::string::npos
                                  ? body
                                  : std::string("{") + fields + R"("prompt":"pro","stream":)";
    const json whole = post_json("/v1/completions", fixed + "false}");
    std::string text;
    int num_finished = 0;
    const auto events = stream("/v1/completions", fixed + "true}");
    EXPECT_EQ(events.back(), "[DONE]");
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json chunk = json::parse(events[i]);
      text += chunk["choices"][0]["text"].get<std::string>();
      num_finished += !chunk["choices"][0]["finish_reason"].is_null();
      EXPECT_EQ(chunk["id"], "cmpl-fixed");
    }
    EXPECT_EQ(text, whole["choices"][0]["text"]) << fields;
    EXPECT_EQ(num_finished, 1);
    EXPECT_EQ(json::parse(events[events.size() - 2])["choices"][0]["finish_reason"],
              whole["choices"][0]["finish_reason"]);
  }
}

TEST_F(Service, ChatStreamShape) {
  options.per_request_spec_decode_metrics = SpecDecodeMetrics::kSummary;
  const auto events = stream(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_GE(events.size(), 4u);
  const json first = json::parse(events[0]);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(first["choices"][0]["delta"]["content"], "");
  std::string text;
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_FALSE(chunk["choices"][0]["delta"].contains("role"));
    EXPECT_TRUE(chunk["usage"].is_null());
    text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "hello world, this is text");
  const json usage = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], ids_of(text).size());
  EXPECT_EQ(
      usage["usage"]["total_tokens"].get<int>(),
      usage["usage"]["prompt_tokens"].get<int>() + usage["usage"]["completion_tokens"].get<int>());
  EXPECT_TRUE(usage["metrics"]["speculative_decoding"].is_object());
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    EXPECT_FALSE(json::parse(events[i]).contains("metrics"));
  }
}

// In every event, the one with the role among them.
TEST_F(Service, ContinuousUsage) {
  const std::string asked =
      R"("max_tokens":16,"stream":true,"stream_options":{"continuous_usage_stats":true}})";
  for (const auto& events : {stream("/v1/completions", R"({"prompt":"ab",)" + asked),
                             stream("/v1/chat/completions",
                                    R"({"messages":[{"role":"user","content":"ab"}],)" + asked)}) {
    int last = 0;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json chunk = json::parse(events[i]);
      ASSERT_TRUE(chunk["usage"].is_object()) << events[i];
      EXPECT_GE(chunk["usage"]["prompt_tokens"], 2);
      EXPECT_GE(chunk["usage"]["completion_tokens"].get<int>(), last);
      last = chunk["usage"]["completion_tokens"];
    }
    EXPECT_EQ(last, 16);
  }
}

TEST_F(Service, LegacyLogprobs) {
  play("hello w");
  const json out = post_json("/v1/completions", R"({"prompt":"ab","logprobs":2})");
  const json& logprobs = out["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (json{"hello", " w"}));
  EXPECT_EQ(logprobs["token_logprobs"], (json{-0.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], (json{0, 5}));
  EXPECT_EQ(logprobs["top_logprobs"].size(), 2u);
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 3u);  // two best and the chosen one
  const json none = post_json("/v1/completions", R"({"prompt":"ab","logprobs":0})");
  EXPECT_EQ(none["choices"][0]["logprobs"]["top_logprobs"][0], (json{{"hello", -0.5}}));
  EXPECT_EQ(engine.submitted()[1].params.num_logprobs, 0);
}

TEST_F(Service, ChatLogprobs) {
  play(Script{.tokens = bytes_of("é")});
  const json out = post_json(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":2})");
  const json& content = out["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["bytes"], (json{0xc3}));
  EXPECT_EQ(content[0]["token"], "\xef\xbf\xbd");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][1]["bytes"], (json{0xc4}));
}

TEST_F(Service, StreamedLogprobsCoverTheSameTokens) {
  play("hello world END x", 4);
  const std::string body = R"({"prompt":"a","logprobs":1,"stop":"END","max_tokens":30,"stream":)";
  const json whole = post_json("/v1/completions", body + "false}")["choices"][0]["logprobs"];
  json streamed = {{"tokens", json::array()}, {"text_offset", json::array()}};
  const auto events = stream("/v1/completions", body + "true}");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    const json& part = chunk["choices"][0]["logprobs"];
    if (part.is_null()) continue;
    for (const char* name : {"tokens", "text_offset"}) {
      for (const json& value : part[name]) streamed[name].push_back(value);
    }
  }
  EXPECT_EQ(streamed["tokens"], whole["tokens"]);
  EXPECT_EQ(streamed["text_offset"], whole["text_offset"]);
}

TEST_F(Service, EchoWithLogprobs) {
  const json out =
      post_json("/v1/completions", R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":2})");
  const json& choice = out["choices"][0];
  EXPECT_EQ(choice["text"], "abchello w");
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"a", "b", "c", "hello", " w"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -0.5);
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(out["usage"]["completion_tokens"], 2);
}

// lm-evaluation-harness asks for one token and reads all entries but the last: the end token must
// be one of them, or the last token of the prompt would go unread.
TEST_F(Service, TheEndTokenIsOneOfTheLogprobs) {
  play(Script{.tokens = {}, .stop_token = 65});
  const std::string scoring = R"("prompt":"abc","echo":true,"logprobs":1,"max_tokens":1})";
  const json choice = post_json("/v1/completions", "{" + scoring)["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["tokens"], (json{"a", "b", "c", "A"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (json{nullptr, -0.5, -0.5, -0.5}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"].size(), 4u);
  EXPECT_EQ(choice["logprobs"]["text_offset"], (json{0, 1, 2, 3}));
  const json ids = post_json("/v1/completions", R"({"return_token_ids":true,)" + scoring);
  EXPECT_EQ(ids["choices"][0]["token_ids"], json::array({65}));
  EXPECT_EQ(ids["usage"]["completion_tokens"], 1);
  const std::string shown = R"({"include_stop_str_in_output":true,)" + scoring;
  const json with_text = post_json("/v1/completions", shown)["choices"][0];
  EXPECT_EQ(with_text["text"], "abcA");
  EXPECT_EQ(with_text["logprobs"]["text_offset"], (json{0, 1, 2, 3}));
  const json chat =
      post_json("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"hi"}],"logprobs":true,"max_tokens":1})");
  ASSERT_EQ(chat["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][0]["token"], "A");
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "");
  EXPECT_EQ(chat["usage"]["completion_tokens"], 1);
}

// As with vLLM: the token that ends an answer counts, is listed and has an origin, streamed or not.
TEST_F(Service, TheEndTokenIsOneOfTheTokens) {
  play(Script{.tokens = ids_of("ab"), .stop_token = 65});
  for (const std::string stop : {"", R"("stop_token_ids":[65],)"}) {
    const std::string body =
        "{" + stop + R"("prompt":"a","return_token_ids":true,"return_token_origins":true)";
    const json out = post_json("/v1/completions", body + "}");
    std::vector<int32_t> expected = ids_of("ab");
    expected.push_back(65);
    const json& choice = out["choices"][0];
    EXPECT_EQ(choice["text"], "ab");
    EXPECT_EQ(choice["token_ids"], json(expected));
    EXPECT_EQ(choice["token_origins"].size(), expected.size());
    EXPECT_EQ(out["usage"]["completion_tokens"], expected.size());
    json ids = json::array();
    std::string text;
    json usage;
    for (const std::string& data :
         stream("/v1/completions",
                body + R"(,"stream":true,"stream_options":{"include_usage":true}})")) {
      if (data == "[DONE]") break;
      const json event = json::parse(data);
      if (event["choices"].empty()) {
        usage = event["usage"];
        continue;
      }
      for (const json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
      text += event["choices"][0]["text"];
    }
    EXPECT_EQ(ids, json(expected));
    EXPECT_EQ(text, "ab");
    EXPECT_EQ(usage["completion_tokens"], expected.size());
  }
}

TEST_F(Service, EchoWithoutOutput) {
  const json scored =
      post_json("/v1/completions", R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":0})");
  EXPECT_EQ(scored["choices"][0]["text"], "abc");
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(scored["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
  const json plain = post_json("/v1/completions", R"({"prompt":"abc","echo":true,"max_tokens":0})");
  EXPECT_EQ(plain["choices"][0]["text"], "abc");
  EXPECT_EQ(engine.submitted().size(), 1u);  // the second needed no engine
}

TEST_F(Service, ManyPromptsAndChoices) {
  engine.script = [](const Request& request) {
    return Script{.tokens = ids_of("<" + std::to_string(request.prompt.size()) + ">")};
  };
  const json out = post_json("/v1/completions", R"({"prompt":["a",[98,99],"ddd"],"n":2,"seed":5})");
  ASSERT_EQ(out["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(out["choices"][i]["index"], i);
    EXPECT_EQ(out["choices"][i]["text"], "<" + std::to_string(i / 2 + 1) + ">");
  }
  EXPECT_EQ(out["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(out["usage"]["completion_tokens"], 18);
  EXPECT_FALSE(out.contains("metrics"));
  // The first choice draws with the seed itself, the second with its mix; alike for every prompt.
  std::vector<uint64_t> seeds;
  for (const Request& request : engine.submitted()) seeds.push_back(request.params.noise_seed);
  EXPECT_EQ(seeds[0], 5u);
  EXPECT_NE(seeds[1], 5u);
  EXPECT_EQ(seeds[2], seeds[0]);
  EXPECT_EQ(seeds[3], seeds[1]);
}

TEST_F(Service, WithoutASeedDrawsDiffer) {
  post_json("/v1/completions", R"({"prompt":["a","b"],"n":2})");
  std::set<uint64_t> seeds;
  for (const Request& request : engine.submitted()) {
    seeds.insert(request.params.noise_seed);
    EXPECT_FALSE(request.params.seed);
  }
  EXPECT_EQ(seeds.size(), 4u);
  post_json("/v1/completions", R"({"prompt":"a","seed":-1})");  // vLLM's and llama.cpp's for any
  EXPECT_FALSE(engine.submitted().back().params.seed);
}

TEST_F(Service, TokenIdsAndOrigins) {
  play("abcdef");
  const json out = post_json(
      "/v1/completions", R"({"prompt":"xy","return_token_ids":true,"return_token_origins":true})");
  const json& choice = out["choices"][0];
  EXPECT_EQ(choice["token_ids"], json(ids_of("abcdef")));
  EXPECT_EQ(choice["prompt_token_ids"], json(ids_of("xy")));
  EXPECT_EQ(choice["token_origins"],
            (json{"accepted", "accepted", "corrected", "accepted", "accepted", "corrected"}));
  EXPECT_EQ(choice["text_offset"], (json{0, 1, 2, 3, 4, 5}));
}

TEST_F(Service, StopsAreReported) {
  play("one END two");
  const json text = post_json("/v1/completions", R"({"prompt":"a","stop":["END"]})");
  EXPECT_EQ(text["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(text["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(text["usage"]["completion_tokens"], ids_of("one END").size());
  EXPECT_GE(engine.num_cancelled(), 1u);  // the engine was told
  play(Script{.tokens = ids_of("ab"), .stop_token = 65});
  const json token = post_json("/v1/completions", R"({"prompt":"a","stop_token_ids":[65]})");
  EXPECT_EQ(token["choices"][0]["stop_reason"], 65);
  const json end = post_json("/v1/completions", R"({"prompt":"a"})");
  EXPECT_TRUE(end["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(engine.submitted().back().params.stop_token_ids,
            std::vector<int32_t>{*test_tokenizer()->eos_id()});
}

TEST_F(Service, ContextLength) {
  const json too_long =
      post_json("/v1/completions", "{\"prompt\":\"" + std::string(512, 'a') + "\"}", 400);
  EXPECT_NE(error_of(too_long).find("maximum context length is 512 tokens"), std::string::npos);
  EXPECT_EQ(too_long["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(too_long["error"]["param"], "prompt");
  const json too_many = post_json("/v1/completions", R"({"prompt":"abc","max_tokens":510})", 400);
  EXPECT_NE(error_of(too_many).find("(510 > 512 - 3)"), std::string::npos);
  post_json("/v1/completions", R"({"prompt":"abc","max_tokens":509})");
  post_json("/v1/completions",
            "{\"truncate_prompt_tokens\":4,\"prompt\":\"" + std::string(600, 'a') + "\"}");
  EXPECT_EQ(engine.submitted().back().prompt.size(), 4u);
  post_json("/v1/completions", R"({"prompt":""})", 400);
}

TEST_F(Service, HealthFollowsTheEngine) {
  EXPECT_EQ(get("/health").status, 200);
  engine.ready = false;
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/livez").status, 200);
  engine.ready = true;
  engine.round_age_s = 1000;
  EXPECT_EQ(get("/health").status, 503);
}

TEST_F(Service, ModelsAndVersion) {
  const json list = json::parse(get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "test-model");
  EXPECT_EQ(list["data"][0]["root"], "test-model-root");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(json::parse(get("/v1/models/test-model").body)["id"], "test-model");
  options.build = {{"version", "1.2.3"}, {"mpi", "Some MPI 4.1"}};
  EXPECT_EQ(json::parse(get("/version").body),
            json({{"version", "1.2.3"}, {"mpi", "Some MPI 4.1"}}));
  EXPECT_EQ(json::parse(get("/server_info").body)["draft"], "draft");
  EXPECT_EQ(json::parse(get("/server_info").body)["version"], "1.2.3");
  EXPECT_EQ(json::parse(get("/load").body)["server_load"], 0);
}

TEST_F(Service, TokenizerInfoNamesSpecialTokens) {
  const json info = json::parse(get("/tokenizer_info").body);
  const std::string eos = info["eos_token"];
  const json ids =
      post_json("/tokenize", R"({"add_special_tokens":false,"prompt":)" + json(eos).dump() + "}");
  EXPECT_EQ(ids["tokens"], (json{*test_tokenizer()->eos_id()}));
  EXPECT_EQ(info["model_max_length"], 512);
}

TEST_F(Service, TokenizeBothFieldSets) {
  const json prompt = post_json("/tokenize", R"({"prompt":"hello w","return_token_strs":true})");
  EXPECT_EQ(prompt["tokens"], json(ids_of("hello w")));
  EXPECT_EQ(prompt["count"], 2);
  EXPECT_EQ(prompt["max_model_len"], 512);
  EXPECT_EQ(prompt["token_strs"][0], "hello");
  const json content = post_json("/tokenize", R"({"content":"hello w","with_pieces":true})");
  EXPECT_EQ(content["tokens"][1]["piece"], " w");
  const json chat = post_json("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(chat["tokens"][0], *test_tokenizer()->token_id("<|im_start|>"));
  const json back = post_json("/detokenize", R"({"tokens":)" + prompt["tokens"].dump() + "}");
  EXPECT_EQ(back["prompt"], "hello w");
  EXPECT_EQ(back["content"], "hello w");
  post_json("/tokenize", "{}", 400);
  post_json("/detokenize", R"({"tokens":[99999]})", 400);
}

TEST_F(Service, IgnoredFieldsAreNamedInTheAnswer) {
  const std::string warning =
      "unknown parameter \"temprature\" (did you mean 'temperature'?) was ignored";
  const std::string body = R"({"prompt":"abc","temprature":1,"request_id":"mine","n":2,"stream":)";
  const json whole = post_json("/v1/completions", body + "false}");
  EXPECT_EQ(whole["warnings"], json::array({warning}));
  EXPECT_EQ(whole["id"], "cmpl-mine");
  // Whichever choice is the first to have tokens.
  engine.script = [script = engine.script](const Request& request) {
    Script later = script(request);
    if (!request.is_further) later.pause = std::chrono::milliseconds(30);
    return later;
  };
  const std::vector<std::string> events = stream("/v1/completions", body + "true}");
  EXPECT_EQ(json::parse(events[0])["warnings"], json::array({warning}));
  for (size_t i = 1; i + 1 < events.size(); ++i)
    EXPECT_FALSE(json::parse(events[i]).contains("warnings"));
  EXPECT_FALSE(post_json("/v1/completions", R"({"prompt":"abc"})").contains("warnings"));
}

TEST_F(Service, MetricsAreCounted) {
  post_json("/v1/completions", R"({"prompt":"abc","unknown_thing":1})");
  post_json("/v1/completions", R"({"prompt":5})", 400);
  const std::string text = get("/metrics").body;
  const std::string labels = "{model_name=\"test-model\",engine=\"0\"";
  EXPECT_NE(text.find("vllm:prompt_tokens_total" + labels + "} 3.0"), std::string::npos);
  EXPECT_NE(text.find("vllm:generation_tokens_total" + labels + "} 16.0"), std::string::npos);
  EXPECT_NE(
      text.find("outrider:request_success_total" + labels + ",finished_reason=\"length\"} 1.0"),
      std::string::npos);
  EXPECT_NE(text.find("outrider:requests_refused_total" + labels + ",status=\"400\"} 1.0"),
            std::string::npos);
  EXPECT_NE(text.find("outrider:unknown_parameters_total" + labels + "} 1.0"), std::string::npos);
  EXPECT_NE(text.find("vllm:time_to_first_token_seconds_count" + labels + "} 1"),
            std::string::npos);
}

TEST_F(Service, TextThatIsNotUtf8IsReplaced) {
  play(Script{.tokens = bytes_of("a\xff\xfe"
                                 "b")});
  const json out = post_json("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(out["choices"][0]["text"],
            "a\xef\xbf\xbd\xef\xbf\xbd"
            "b");
}

TEST_F(Service, GenerationDefaultsReachTheEngine) {
  defaults.temperature = 0.25f;
  make_service(true);
  post_json("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(engine.submitted().back().params.temperature, 0.25f);
}

TEST_F(Service, PingsFillSilence) {
  options.sse_ping_interval = std::chrono::milliseconds(30);
  play("ab");
  engine.most_tokens = 0;
  const ServerResponse reply = post("/v1/completions", R"({"prompt":"a","stream":true})");
  ASSERT_TRUE(reply.stream);
  std::string text;
  EXPECT_TRUE(read_until(*reply.stream, ": ping\n\n", &text));
  engine.most_tokens = INT32_MAX;
  while (reply.stream->next(&text)) {
  }
  EXPECT_EQ(events_of(text).back(), "[DONE]");
}

TEST_F(Service, TheRoleComesWithTheFirstToken) {
  options.sse_ping_interval = std::chrono::milliseconds(30);
  play("ab");
  engine.most_tokens = 0;
  const ServerResponse reply =
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"stream":true})");
  ASSERT_TRUE(reply.stream);
  std::string text;
  EXPECT_TRUE(read_until(*reply.stream, ": ping\n\n", &text));
  EXPECT_EQ(text.find("\"role\""), std::string::npos);
  engine.most_tokens = INT32_MAX;
  EXPECT_TRUE(read_until(*reply.stream, "\"role\"", &text));
}

// Mutated bodies: always a status and well-formed JSON, never a crash, and both outcomes are met.
TEST_F(Service, SurvivesMutatedBodies) {
  const std::vector<std::pair<std::string, std::string>> good = {
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":[{"type":"text","text":"hé"}]}],"n":1,"stop":["a"],"logprobs":true,"top_logprobs":2,"max_tokens":4,"logit_bias":{"5":1.5}})"},
      {"/v1/completions",
       R"({"prompt":[[1,2],"x"],"temperature":0.5,"top_p":0.9,"seed":1,"echo":true,"logprobs":1,"speculative":{"enabled":true}})"},
      {"/tokenize", R"({"prompt":"a\u00e9b","add_special_tokens":true})"},
      {"/detokenize", R"({"tokens":[1,2,3]})"}};
  const char letters[] = "{}[]\":,\\0123456789.-eE+truefalsn \xc3\xff";
  const std::string alphabet(letters, sizeof(letters));  // the NUL at its end is one of them
  std::mt19937 random(11);
  int num_good = 0;
  int num_refused = 0;
  for (int round = 0; round < 4000; ++round) {
    auto [path, body] = good[random() % good.size()];
    for (size_t edits = random() % 3 + 1; edits > 0; --edits) {
      const size_t at = random() % body.size();
      if (random() % 2 == 0) {
        body[at] = alphabet[random() % alphabet.size()];
      } else {
        body.erase(at, 1 + random() % 4);
      }
      if (body.empty()) body = "{";
    }
    const ServerResponse reply = post(path, body);
    EXPECT_TRUE(reply.status == 200 || reply.status == 400 || reply.status == 404) << body;
    const json out = json::parse(reply.body, nullptr, false);
    EXPECT_FALSE(out.is_discarded()) << reply.body;
    EXPECT_EQ(out.contains("error"), reply.status != 200);
    num_good += reply.status == 200;
    num_refused += reply.status == 400;
  }
  EXPECT_GT(num_good, 100);
  EXPECT_GT(num_refused, 1000);
}

}  // namespace
}  // namespace outrider::testing
