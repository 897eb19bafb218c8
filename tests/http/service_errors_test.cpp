// What clients of the OpenAI API get when something goes wrong: full queues, errors of the engine
// before and within a stream, clients that leave, drain.
#include <thread>
#include <utility>

#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

using ServiceErrors = HttpFixture;

TEST_F(ServiceErrors, QueueFullBeforeAndWithinACall) {
  engine.capacity = 0;
  const ServerResponse full = post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(json::parse(full.body)["error"]["type"], "rate_limit_error");
  engine.capacity = 2;  // a call of six goes through two at a time
  const json out = post_json("/v1/completions", R"({"prompt":["a","b","c"],"n":2})");
  EXPECT_EQ(out["choices"].size(), 6u);
}

TEST_F(ServiceErrors, ACallWaitsForAPlaceWithoutAskingAllTheTime) {
  engine.script = [this, first = true](const Request&) mutable {
    if (std::exchange(first, false)) engine.capacity = 0;
    return Script{.tokens = ids_of("a")};
  };
  std::jthread later([this](const std::stop_token& stop) {
    while (engine.num_refused == 0 && !stop.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    engine.capacity = 9;
  });
  const auto begin = std::chrono::steady_clock::now();
  post_json("/v1/completions", R"({"prompt":"a","n":2})");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(engine.num_refused.load(), 100 * std::max(1.0, took.count()));
}

TEST_F(ServiceErrors, MoreLogprobsThanAnyAnswerMayHaveAreTheCallsFault) {
  options.call.max_answer_bytes_in_flight = 2000;
  make_service(true);
  play(Script{.tokens = ids_of("abcdefgh"), .pause = std::chrono::milliseconds(5)});
  const json out =
      post_json("/v1/completions", R"({"prompt":"a","logprobs":5,"max_tokens":16})", 400);
  EXPECT_EQ(out["error"]["param"], "logprobs");
}

TEST_F(ServiceErrors, EngineErrorsBeforeTheStreamAreStatuses) {
  play(Script{.tokens = {}, .end = FinishReason::kError, .error = "NaN in the logits"});
  for (const char* stream : {"true", "false"}) {
    const ServerResponse reply =
        post("/v1/completions", std::string(R"({"prompt":"a","stream":)") + stream + "}");
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(error_of(json::parse(reply.body)), "NaN in the logits");
    EXPECT_FALSE(reply.stream);
  }
}

TEST_F(ServiceErrors, AnErrorThatTheRequestAskedForIsA400) {
  play(Script{.tokens = {},
              .end = FinishReason::kError,
              .error = "no token is allowed to come next",
              .is_request_fault = true});
  const json out = post_json("/v1/completions", R"({"prompt":"a"})", 400);
  EXPECT_EQ(error_of(out), "no token is allowed to come next");
  EXPECT_EQ(out["error"]["type"], "invalid_request_error");
}

TEST_F(ServiceErrors, EngineErrorsWithinTheStreamAreEvents) {
  play(Script{.tokens = ids_of("abcdef"),
              .pause = std::chrono::milliseconds(20),
              .end = FinishReason::kError,
              .error = "broken"});
  engine.most_tokens = 3;  // the error comes when the stream has begun
  const ServerResponse reply = post("/v1/completions", R"({"prompt":"a","stream":true})");
  ASSERT_TRUE(reply.stream) << reply.body;
  engine.most_tokens = INT32_MAX;
  std::string bytes;
  while (reply.stream->next(&bytes)) {
  }
  const auto events = events_of(bytes);
  ASSERT_GE(events.size(), 2u);
  const json last = json::parse(events.back());
  EXPECT_EQ(last["error"]["message"], "broken");
  EXPECT_EQ(last["error"]["type"], "server_error");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    text += json::parse(events[i])["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "abcdef");
}

TEST_F(ServiceErrors, ErrorShapeEverywhere) {
  const std::vector<std::pair<std::string, int>> posts = {{"/v1/completions", 400},
                                                          {"/v1/chat/completions", 400},
                                                          {"/tokenize", 400},
                                                          {"/detokenize", 400},
                                                          {"/nowhere", 404},
                                                          {"/v1/embeddings", 404},
                                                          {"/v1/models", 405},
                                                          {"/health", 405}};
  for (const auto& [path, status] : posts) {
    const json out = post_json(path, "{", status);
    for (const char* field : {"message", "type", "param", "code"}) {
      EXPECT_TRUE(out["error"].contains(field)) << path;
    }
  }
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(get("/v1/completions").status, 405);
  EXPECT_EQ(get("/v1/models/other").status, 404);
  ServiceCall call;
  call.method = "DELETE";
  call.path = "/v1/completions";
  EXPECT_EQ(service->handle(std::move(call)).status, 405);
}

TEST_F(ServiceErrors, WrongMethodNamesTheRightOnes) {
  EXPECT_EQ(allow_of(get("/v1/completions")), "POST");
  EXPECT_EQ(allow_of(post("/v1/models", "{}")), "GET, HEAD");
  EXPECT_EQ(allow_of(post("/nowhere", "{}")), "");
}

TEST_F(ServiceErrors, PathsWithoutVersionAndWithSlash) {
  for (const char* path : {"/models", "/models/", "/v1/models/", "/models/test-model"}) {
    EXPECT_EQ(get(path).status, 200) << path;
  }
  for (const char* path : {"/completions", "/v1/completions/", "/completions//"}) {
    EXPECT_EQ(post(path, R"({"prompt":"a"})").status, 200) << path;
  }
  EXPECT_EQ(post("/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})").status,
            200);
  EXPECT_EQ(post("/ping", "").status, 200);
}

TEST_F(ServiceErrors, ClientLeavesWhileWaiting) {
  play_endless();
  for (const char* stream : {"false", "true"}) {
    int asked = 0;
    ServiceCall call;
    call.path = "/v1/completions";
    const std::string body =
        std::string(R"({"prompt":"a","max_tokens":1000000,"stop":"zzz","stream":)") + stream + "}";
    call.body.text = body;
    call.client_gone = [&asked] { return ++asked > 1; };
    ServerResponse reply = service->handle(std::move(call));
    if (reply.stream) {
      std::string bytes;
      reply.stream->next(&bytes);
      reply.stream.reset();  // what the transport does when the client is gone
    } else {
      EXPECT_TRUE(reply.client_gone);
    }
  }
  EXPECT_EQ(engine.num_cancelled(), 2u);
  EXPECT_EQ(service->num_running(), 0);
}

TEST_F(ServiceErrors, DrainAndAbort) {
  play_endless();
  ServerResponse reply =
      post("/v1/completions", R"({"prompt":"a","max_tokens":1000000,"stream":true})");
  ASSERT_TRUE(reply.stream);
  EXPECT_EQ(service->num_running(), 1);
  EXPECT_EQ(get("/readyz").status, 200);
  service->begin_drain();
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/health").status, 200);
  const ServerResponse refused = post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  service->abort_running();
  std::string text;
  while (reply.stream->next(&text)) {
  }
  const json last = json::parse(events_of(text).back());
  EXPECT_EQ(last["error"]["type"], "service_unavailable_error");
  reply.stream.reset();
  EXPECT_EQ(service->num_running(), 0);
  EXPECT_EQ(engine.num_cancelled(), 1u);
}

}  // namespace
}  // namespace outrider::testing
