// The server over loopback sockets: what the guard refuses, slow and leaving clients, keep-alive
// and pipelining, probes under load, drain.
#include "http/server.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/base/error.h"
#include "runtime/base/telemetry/load_progress.h"
#include "tests/http/server_fixture.h"

namespace outrider::testing {
namespace {

// For play_endless().
const char* kEndless = R"({"prompt":"a","max_tokens":1000000,"stream":true})";
const char* kEndlessWhole = R"({"prompt":"a","max_tokens":1000000})";

TEST_F(Server, AnswersAndKeepsTheConnection) {
  start();
  Client client(server->port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post_bytes(R"({"prompt":"abc"})", "X-Request-Id: my-id.1\r\n")));
    const std::string response = client.read_response();
    EXPECT_EQ(status_of(response), 200);
    EXPECT_NE(response.find("X-Request-Id: my-id.1\r\n"), std::string::npos);
    EXPECT_NE(response.find("\"id\":\"cmpl-my-id.1\""), std::string::npos);
  }
  ASSERT_TRUE(client.send(get_bytes("/version", "Connection: close\r\n")));
  EXPECT_NE(client.read_all().find("Connection: close"), std::string::npos);
}

TEST_F(Server, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(server->port());
  std::string bytes;
  for (int i = 0; i < 5; ++i) {
    bytes += post_bytes(R"({"prompt":"abc"})", "X-Request-Id: n" + std::to_string(i) + "\r\n");
  }
  ASSERT_TRUE(client.send(bytes));
  for (int i = 0; i < 5; ++i) {
    const std::string response = client.read_response();
    EXPECT_EQ(status_of(response), 200);
    EXPECT_NE(response.find("cmpl-n" + std::to_string(i)), std::string::npos) << i;
  }
}

TEST_F(Server, StreamsInChunks) {
  start();
  Client client(server->port());
  client.send(post_bytes(R"({"prompt":"abc","stream":true})"));
  // The last chunk, on a line of its own: a request id may end in 0 as well.
  const std::string response = client.read_until("\r\n0\r\n\r\n");
  EXPECT_EQ(status_of(response), 200);
  EXPECT_NE(response.find("Content-Type: text/event-stream"), std::string::npos);
  EXPECT_NE(response.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(response.find("data: [DONE]\n\n"), std::string::npos);
}

TEST_F(Server, HeadHasNoBody) {
  start();
  Client client(server->port());
  client.send("HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string response = client.read_all();
  EXPECT_EQ(status_of(response), 200);
  EXPECT_EQ(response.substr(response.size() - 4), "\r\n\r\n");
}

TEST_F(Server, WrongMethodNamesTheRightOnes) {
  start();
  EXPECT_NE(ask(get_bytes("/v1/completions")).find("\r\nAllow: POST\r\n"), std::string::npos);
}

TEST_F(Server, RefusesWhatTheGuardKnows) {
  start();
  const std::string body = R"({"prompt":"a"})";
  const auto framed = [&](const std::string& headers) {
    return "POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body;
  };
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  const std::vector<std::pair<std::string, int>> attacks = {
      {framed("Transfer-Encoding: chunked\r\n"), 400},  // the body is no chunk
      {framed("Transfer-Encoding: gzip, chunked\r\n"), 501},
      {framed("Transfer-Encoding:\r\n" + length), 400},
      {framed("Transfer-Encoding: chunked\r\n" + length), 400},
      {framed(length + "Content-Length: 1\r\n"), 400},
      {framed(length + length), 400},
      {framed("Content-Encoding: gzip\r\n" + length), 415},
      {framed("Content-Length: 999999999\r\n"), 413},
      {framed("X: a\r\n b\r\n" + length), 400},
      {framed("Content-Type: text/plain\r\n" + length), 415},
      {framed("Origin: http://elsewhere\r\n" + length), 403},
      {"GET / HTTP/1.1\nHost: x\n\n", 400},
      {std::string("GET / HTTP/1.1\r\nHost: x\0\r\n\r\n", 28), 400},
      {"GET /\r\n\r\n", 400},
      {"GET /" + std::string(9000, 'a'), 414},
      {"GET / HTTP/1.1\r\nA: " + std::string(40'000, 'a'), 431},
  };
  for (const auto& [bytes, status] : attacks) {
    const std::string response = ask(bytes);
    EXPECT_EQ(status_of(response), status) << bytes.substr(0, 80);
    EXPECT_NE(response.find("\"error\":{\"message\""), std::string::npos);
  }
  EXPECT_TRUE(engine.submitted().empty());
  EXPECT_EQ(status_of(ask(post_bytes(body))), 200);  // and goes on
}

TEST_F(Server, BodiesInManyPieces) {
  start();
  Client client(server->port());
  const std::string bytes = post_bytes(R"({"prompt":"abc"})");
  for (const char c : bytes) {
    client.send(std::string(1, c));
    if (c == '\n') std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(status_of(client.read_response()), 200);
}

TEST_F(Server, ExpectContinue) {
  start();
  Client client(server->port());
  const std::string body = R"({"prompt":"abc"})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_NE(client.read_until("\r\n\r\n").find("HTTP/1.1 100 Continue"), std::string::npos);
  client.send(body);
  EXPECT_NE(client.read_until("cmpl-").find("HTTP/1.1 200"), std::string::npos);
}

TEST_F(Server, SlowHeadsAndBodiesEnd) {
  options.connection.head_timeout = milliseconds(200);
  options.connection.body_timeout = milliseconds(300);
  start();
  // Without an answer this thread was held up, and not even a beginning came in time.
  const auto is_timed_out = [&](const std::string& beginning) {
    Client client(server->port());
    client.send(beginning);
    return status_of(client.read_all()) == 408;
  };
  EXPECT_TRUE(eventually([&] { return is_timed_out("GET / HTTP/1.1\r\nHost:"); }));
  EXPECT_TRUE(eventually([&] {
    return is_timed_out("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  }));
  Client silent(server->port());
  EXPECT_EQ(silent.read_all(), "");
}

TEST_F(Server, DrippingBodiesEndByTheirRate) {
  options.connection.body_grace = milliseconds(200);
  start();
  Client client(server->port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{");
  EXPECT_EQ(status_of(client.read_all()), 408);
}

TEST_F(Server, ClientLeavesAStream) {
  play_endless();
  start();
  {
    Client client(server->port());
    client.send(post_bytes(kEndless));
    EXPECT_NE(client.read_until("data: ").find("data: "), std::string::npos);
  }
  EXPECT_TRUE(eventually([&] { return engine.num_cancelled() == 1 && engine.num_running() == 0; }));
  EXPECT_TRUE(eventually([&] { return service->num_running() == 0; }));
}

TEST_F(Server, ClientLeavesAWaitingCall) {
  play_endless();
  start();
  {
    Client client(server->port());
    client.send(post_bytes(kEndlessWhole));
    EXPECT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return engine.num_cancelled() == 1; }));
}

TEST_F(Server, ClientLeavesWithAPipelinedRequestBehind) {
  play_endless();
  start();
  {
    Client client(server->port());
    client.send(post_bytes(kEndlessWhole) + get_bytes("/version"));
    EXPECT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return engine.num_cancelled() == 1; }));
}

TEST_F(Server, ClientThatStopsReadingIsCutOff) {
  options.connection.write_timeout = milliseconds(300);
  engine.mutable_info().max_model_len = 5'000'000;
  play(Script{.tokens = ids_of(std::string(300, 'x')),
              .tokens_per_event = 300,
              .pause = milliseconds(1),
              .endless = true});
  start();
  Client client(server->port());
  client.send(post_bytes(R"({"prompt":"a","max_tokens":4000000,"stream":true,"logprobs":1})"));
  EXPECT_TRUE(eventually([&] { return engine.num_cancelled() == 1; }));
}

TEST_F(Server, ProbesAnswerWhileStreamsRun) {
  play_endless(milliseconds(20));
  start();
  std::vector<std::unique_ptr<Client>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<Client>(server->port()));
    streams.back()->send(post_bytes(kEndless));
  }
  for (auto& stream : streams) stream->read_until("data: ");
  for (const char* path : {"/health", "/metrics", "/livez", "/v1/models"}) {
    EXPECT_EQ(status_of(ask(get_bytes(path))), 200) << path;
  }
}

TEST_F(Server, ProbesAnswerWhenConnectionsAreUsedUp) {
  options.connection.max_connections = 4;
  play_endless(milliseconds(20));
  start();
  std::vector<std::unique_ptr<Client>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<Client>(server->port()));
    streams.back()->send(post_bytes(kEndless));
    streams.back()->read_until("data: ");
  }
  EXPECT_EQ(status_of(ask_until_answered(get_bytes("/health"))), 200);
  EXPECT_EQ(status_of(ask_until_answered(get_bytes("/metrics"))), 200);
  EXPECT_EQ(status_of(ask_until_answered(get_bytes("/v1/models"))), 503);
  // Silent connections cannot take the probes' places for long either; beyond them all, 503 without
  // a thread.
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Client>(server->port()));
  EXPECT_TRUE(eventually([&] { return status_of(ask(get_bytes("/health"))) == 200; }));
}

// Whatever their size: a client must come again, not give up.
TEST_F(Server, CallsAreToldToComeAgainWhenConnectionsAreUsedUp) {
  options.connection.max_connections = 1;
  options.connection.idle_timeout = std::chrono::minutes(5);
  start();
  Client holder(server->port());
  holder.send(get_bytes("/version"));
  EXPECT_EQ(status_of(holder.read_response()), 200);  // so it is in, and stays
  EXPECT_EQ(status_of(ask_until_answered(get_bytes("/v1/models"))), 503);
  for (const char* length : {"10", "8388608", "999999999"}) {
    const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ";
    const std::string response = ask_until_answered(head + length + "\r\n\r\n");
    EXPECT_EQ(status_of(response), 503) << length;
    EXPECT_NE(response.find("Retry-After: 1\r\n"), std::string::npos);
  }
}

TEST_F(Server, LargeBodiesShareABudget) {
  options.connection.max_large_body_bytes_in_flight = 200'000;
  start();
  const std::string body = R"({"prompt":"a","user":")" + std::string(150'000, 'x') + "\"}";
  const std::string bytes = post_bytes(body);
  // Two that are read at once may refuse each other: then the first one comes again.
  EXPECT_TRUE(eventually([&] {
    Client first(server->port());
    first.send(bytes.substr(0, bytes.size() - 10));
    std::string refused;
    for (int i = 0; i < 50 && status_of(refused) != 503; ++i) refused = ask(bytes);
    if (status_of(refused) != 503) return false;
    EXPECT_NE(refused.find("Retry-After: 1\r\n"), std::string::npos);
    EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})"))), 200);  // a small one
    first.send(bytes.substr(bytes.size() - 10));
    return status_of(first.read_response()) == 200;
  }));
  // The first gives back its share once its answer is out.
  EXPECT_TRUE(eventually([&] { return status_of(ask(bytes)) == 200; }));
}

TEST_F(Server, ChunkedBodiesInAnyPieces) {
  start();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: Chunked\r\n\r\n";
  const std::string whole = head + "5\r\n{\"pro\r\n00b\r\nmpt\":\"abc\"}\r\n0\r\n\r\n";
  EXPECT_EQ(status_of(ask(whole)), 200);
  Client client(server->port());
  for (const char c : whole) client.send(std::string(1, c));
  EXPECT_EQ(status_of(client.read_response()), 200);
  client.send(whole + whole);  // what follows the last chunk is the next request
  EXPECT_EQ(status_of(client.read_response()), 200);
  EXPECT_EQ(status_of(client.read_response()), 200);
  ASSERT_EQ(engine.submitted().size(), 4u);
  EXPECT_EQ(engine.submitted().back().prompt, engine.submitted().front().prompt);
  for (const char* wrong : {"-2\r\n",
                            "x\r\n",
                            "5;a=b\r\n{\"pro\r\n",
                            "\r\n",
                            "5\r\n{\"prompt",
                            "0\r\nA: b\r\n\r\n",
                            "11111111111111111\r\n",
                            "5\n"}) {
    EXPECT_EQ(status_of(ask(head + wrong)), 400) << wrong;
  }
  EXPECT_EQ(status_of(ask(head + "fffffff\r\n")), 413);
}

// As nginx asks unless it is told otherwise: the end of the connection ends the stream.
TEST_F(Server, StreamsToOldProxies) {
  start();
  Client client(server->port());
  const std::string body = R"({"prompt":"a","stream":true})";
  client.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string response = client.read_all();
  EXPECT_EQ(status_of(response), 200);
  EXPECT_EQ(response.find("Transfer-Encoding"), std::string::npos);
  EXPECT_TRUE(response.ends_with("data: [DONE]\n\n")) << response;
}

TEST_F(Server, SaysThatTheModelIsBeingLoadedAndHowFarItIs) {
  server = std::make_unique<HttpServer>(options);
  server->start();
  for (const char* path : {"/readyz", "/health", "/v1/models", "/metrics"}) {
    const std::string response = ask(get_bytes(path));
    EXPECT_EQ(status_of(response), 503) << path;
    EXPECT_NE(response.find("\"code\":\"loading\""), std::string::npos) << response;
    EXPECT_NE(response.find("Retry-After: 1\r\n"), std::string::npos);
  }
  EXPECT_EQ(status_of(ask(get_bytes("/livez"))), 200);
  EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})"))), 503);
  load_progress().all_bytes = 16'000'000'000;
  load_progress().read_bytes = 4'000'000'000;
  EXPECT_NE(ask(get_bytes("/readyz")).find("25 % of 16.000 GB of weights are read"),
            std::string::npos);
  opening.reset(new HttpServer::Opening(server->open(*service, metrics)));
  EXPECT_EQ(status_of(ask(get_bytes("/readyz"))), 200);
  EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})"))), 200);
}

TEST_F(Server, AnErrorOfOursEndsItsConnectionOnly) {
  engine.script = [](const Request&) -> Script { throw std::runtime_error("made up"); };
  start();
  for (const char* stream : {"false", "true"}) {
    const std::string body = std::string(R"({"prompt":"a","stream":)") + stream + "}";
    const std::string response = ask(post_bytes(body));
    EXPECT_EQ(status_of(response), 500);
    EXPECT_EQ(response.find("made up"), std::string::npos);
  }
  play("fine");
  EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})"))), 200);
}

TEST_F(Server, QueueFullIs429WithRetryAfter) {
  engine.capacity = 1;
  play_endless();
  start();
  Client busy(server->port());
  busy.send(post_bytes(kEndless));
  busy.read_until("data: ");
  const std::string response = ask(post_bytes(R"({"prompt":"a"})"));
  EXPECT_EQ(status_of(response), 429);
  EXPECT_NE(response.find("Retry-After: 1\r\n"), std::string::npos);
}

TEST_F(Server, DrainLetsRunningCallsEnd) {
  play(Script{.tokens = ids_of("abcdef"), .pause = milliseconds(50)});
  start();
  Client client(server->port());
  client.send(post_bytes(R"({"prompt":"a","stream":true})"));
  client.read_until("data: ");
  EXPECT_TRUE(server->stop(milliseconds(10'000)));
  EXPECT_NE(client.read_all().find("data: [DONE]"), std::string::npos);
}

TEST_F(Server, NothingNewBeginsInADrain) {
  play_endless();
  start();
  Client streaming(server->port());
  streaming.send(post_bytes(kEndless));
  streaming.read_until("data: ");
  std::thread stopper([&] { EXPECT_TRUE(server->stop(std::chrono::minutes(5))); });
  EXPECT_TRUE(eventually([&] { return status_of(ask(get_bytes("/readyz"))) == 503; }));
  EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})"))), 503);
  streaming.close();  // all that it waits for
  stopper.join();
}

TEST_F(Server, DrainCutsWhatDoesNotEnd) {
  play_endless();
  start();
  Client streaming(server->port());
  streaming.send(post_bytes(kEndless));
  streaming.read_until("data: ");
  Client waiting(server->port());
  waiting.send(post_bytes(kEndlessWhole));
  EXPECT_TRUE(eventually([&] { return engine.num_running() == 2; }));
  EXPECT_FALSE(server->stop(milliseconds(300)));
  EXPECT_NE(streaming.read_all().find("data: {\"error\":{"), std::string::npos);
  EXPECT_EQ(status_of(waiting.read_all()), 503);
  EXPECT_EQ(engine.num_cancelled(), 2u);
}

TEST_F(Server, TwoServersDoNotShareAPort) {
  start();
  HttpOptions same = options;
  same.port = server->port();
  HttpServer second(same);
  EXPECT_THROW(second.start(), Error);
}

TEST_F(Server, NoiseDoesNotStopIt) {
  options.connection.head_timeout = milliseconds(50);
  options.connection.body_timeout = milliseconds(50);
  start();
  std::mt19937 random(99);
  const std::string good = post_bytes(R"({"prompt":"abc","stream":true})");
  for (int round = 0; round < 200; ++round) {
    std::string bytes = good;
    for (size_t edits = random() % 8 + 1; edits > 0; --edits) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    }
    Client client(server->port());
    client.send(bytes.substr(0, random() % (bytes.size() + 1)));
    if (random() % 4 == 0) client.read_until("HTTP/1.1");
  }
  EXPECT_EQ(status_of(ask_until_answered(get_bytes("/health"))), 200);
  EXPECT_TRUE(eventually([&] { return engine.num_running() == 0; }));
}

}  // namespace
}  // namespace outrider::testing
