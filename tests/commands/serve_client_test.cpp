// bench serve, what goes over the wire: the client and the run of requests against a server that
// sends several tokens at once, cuts events, closes early, refuses, and never answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <set>

#include "http/wire/http_client.h"
#include "runtime/commands/bench/serve/serve_report.h"
#include "tests/base/error_sentence.h"
#include "tests/commands/scripted_server.h"

namespace outrider {
namespace {

using Server = ScriptedServer;

ServeTarget target_of(const Server& server, int timeout_ms = 60000) {
  ServeTarget target;
  target.address = parse_server_address(server.url());
  target.endpoint = "/v1/completions";
  target.request_timeout = std::chrono::milliseconds(timeout_ms);
  return target;
}

std::vector<PlannedRequest> plan(std::vector<std::string> bodies) {
  std::vector<PlannedRequest> requests;
  for (std::string& body : bodies) requests.push_back({0, std::move(body), 3, 4});
  return requests;
}

std::string event(const std::string& text, int num_tokens) {
  return "data: {\"choices\":[{\"text\":\"" + text + "\"}],\"usage\":{\"prompt_tokens\":3," +
         "\"completion_tokens\":" + std::to_string(num_tokens) + "}}\n\n";
}
const std::string kEnd =
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

bool answer_well(int socket) {
  Server::send_head(socket);
  Server::send_chunk(socket, event("a", 1));
  Server::send_chunk(socket, event("bcd", 4));
  Server::send_chunk(socket, kEnd);
  Server::send_end(socket);
  return true;
}

bool has(const std::string& request, const std::string& word) {
  return request.find(word) != std::string::npos;
}

// One of every way to go wrong, told apart by the body.
bool answer_by_body(int socket, const std::string& head_and_body) {
  // The head names the port, in whose digits any number may stand.
  const std::string request = head_and_body.substr(head_and_body.find("\r\n\r\n"));
  if (has(request, "429")) {
    Server::send_whole(socket, "429 Too Many Requests", R"({"error":{"message":"queue full"}})");
    return true;
  }
  if (has(request, "500")) {
    Server::send_whole(socket, "500 Internal Server Error", "oops");
    return true;
  }
  if (has(request, "early")) {
    Server::send_head(socket);
    Server::send_chunk(socket, event("a", 1));
    return false;
  }
  if (has(request, "mute")) return false;
  if (has(request, "silent")) {
    Server::be_silent(socket);
    return false;
  }
  if (has(request, "stalls")) {
    Server::send_head(socket);
    Server::send_chunk(socket, event("a", 1));
    Server::be_silent(socket);
    return false;
  }
  if (has(request, "noise")) {
    Server::send(socket, "this is not HTTP\r\n\r\n");
    return false;
  }
  if (has(request, "cut")) {  // every byte a packet of its own chunk
    Server::send_head(socket);
    for (const char c : event("a", 1) + event("bcd", 4) + kEnd)
      Server::send_chunk(socket, std::string(1, c));
    Server::send_end(socket);
    return true;
  }
  return answer_well(socket);
}

TEST(ServeClient, SeveralTokensInAChunkAndEventsOverPackets) {
  Server server(answer_by_body);
  const auto records = run_requests(target_of(server), plan({"good", "cut"}), 0, nullptr);
  ASSERT_EQ(records.size(), 2u);
  for (const RequestRecord& record : records) {
    EXPECT_EQ(record.failure, "") << record.error;
    ASSERT_EQ(record.chunks.size(), 2u);
    EXPECT_EQ(record.chunks[0].num_tokens, 1);
    EXPECT_EQ(record.chunks[1].num_tokens, 3);
    EXPECT_EQ(record.prompt_tokens, 3);
    EXPECT_LE(record.sent_s, record.chunks[0].time_s);
    EXPECT_LE(record.chunks[0].time_s, record.chunks[1].time_s);
    EXPECT_LE(record.chunks[1].time_s, record.last_choice_s);
    EXPECT_LE(record.last_choice_s, record.end_s);
  }
}

TEST(ServeClient, EveryFailureIsCountedByItsName) {
  Server server(answer_by_body);
  // Those that answer get the time that a slow machine takes.
  auto records = run_requests(
      target_of(server), plan({"429", "500", "early", "mute", "noise", "good"}), 0, nullptr);
  for (const RequestRecord& record :
       run_requests(target_of(server, 300), plan({"silent", "stalls"}), 0, nullptr))
    records.push_back(record);
  const std::vector<std::string> expected = {"http 429",
                                             "http 500",
                                             "broken stream",
                                             "broken stream",
                                             "broken stream",
                                             "",
                                             "timeout",
                                             "timeout"};
  ASSERT_EQ(records.size(), expected.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].failure, expected[i]) << i << ": " << records[i].error;
    EXPECT_EQ(records[i].error.empty(), expected[i] == "");
  }
  EXPECT_EQ(records[0].error, "queue full");
  const ServeSummary summary = summarize(records, {});
  EXPECT_EQ(summary.completed, 1);
  EXPECT_EQ(summary.failed, 7);
  EXPECT_EQ(summary.failures.at("timeout"), 2);
}

TEST(ServeClient, AStreamThatNeverEndsIsCutAtItsTime) {
  Server server([](int socket, const std::string&) {
    Server::send_head(socket);
    for (int i = 0; i < 100000; ++i) {
      if (::recv(socket, nullptr, 0, MSG_DONTWAIT) == 0 && i > 0) break;
      Server::send_chunk(socket, ": ping\n\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      char byte = 0;
      if (::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) break;
    }
    return false;
  });
  const auto records = run_requests(target_of(server, 200), plan({"x"}), 0, nullptr);
  EXPECT_EQ(records[0].failure, "timeout");
}

// A port that nobody else can take meanwhile, and where nobody listens.
class DeafPort {
 public:
  DeafPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, any, size), 0);
    EXPECT_EQ(::getsockname(socket_, any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~DeafPort() { ::close(socket_); }
  DeafPort(const DeafPort&) = delete;
  DeafPort& operator=(const DeafPort&) = delete;
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  const int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
};

TEST(ServeClient, NoServerIsAFailureOfEachRequest) {
  const DeafPort deaf;
  ServeTarget target;
  target.address = parse_server_address(deaf.url());
  target.endpoint = "/v1/completions";
  const auto records = run_requests(target, plan({"a", "b"}), 0, nullptr);
  ASSERT_EQ(records.size(), 2u);
  for (const RequestRecord& record : records) EXPECT_EQ(record.failure, "connect");
}

// All requests must be in flight at once before any is answered: an open loop does not wait.
TEST(ServeClient, RequestsAreSentWhetherOrNotOthersAreAnswered) {
  constexpr int kCount = 40;
  std::mutex mutex;
  std::condition_variable arrived;
  int num_arrived = 0;
  Server server([&](int socket, const std::string&) {
    std::unique_lock lock(mutex);
    ++num_arrived;
    arrived.notify_all();
    const bool all =
        arrived.wait_for(lock, std::chrono::seconds(60), [&] { return num_arrived >= kCount; });
    lock.unlock();
    return all && answer_well(socket);
  });
  std::vector<PlannedRequest> requests = plan(std::vector<std::string>(kCount, "x"));
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].scheduled_s = 0.002 * static_cast<double>(i);
  const auto records = run_requests(target_of(server), requests, 0, nullptr);
  for (const RequestRecord& record : records) {
    EXPECT_EQ(record.failure, "") << record.error;
    EXPECT_GE(record.sent_s, record.scheduled_s);
  }
  EXPECT_EQ(peak_concurrency(records), kCount);
}

TEST(ServeClient, MaxConcurrencyHoldsAndItsWaitingIsLateness) {
  std::atomic<int> now{0};
  std::atomic<int> peak{0};
  Server server([&](int socket, const std::string&) {
    const int mine = ++now;
    int seen = peak;
    while (mine > seen && !peak.compare_exchange_weak(seen, mine)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    --now;
    return answer_well(socket);
  });
  const auto records =
      run_requests(target_of(server), plan(std::vector<std::string>(30, "x")), 3, nullptr);
  EXPECT_LE(peak, 3);
  EXPECT_LE(peak_concurrency(records), 3);
  // Connections are kept; one that idled for a second on a busy machine is made anew.
  EXPECT_LT(server.num_connections(), 30);
  const ServeSummary summary = summarize(records, {});
  EXPECT_EQ(summary.completed, 30);
  EXPECT_GE(std::count_if(summary.lateness.begin(),
                          summary.lateness.end(),
                          [](double late_ms) { return late_ms > 2; }),
            27);
}

TEST(ServeClient, NothingIsSentAfterAStop) {
  Server server(answer_by_body);
  std::vector<PlannedRequest> requests = plan(std::vector<std::string>(5, "x"));
  for (size_t i = 0; i < requests.size(); ++i) requests[i].scheduled_s = i < 3 ? 0 : 1e6;
  const auto until_three = [](int32_t num_done) { return num_done < 3; };
  EXPECT_EQ(run_requests(target_of(server), requests, 0, until_three).size(), 3u);
  EXPECT_TRUE(run_requests(target_of(server), {}, 0, nullptr).empty());
}

TEST(ServeClient, HeadersPathAndBodyArrive) {
  std::mutex mutex;
  std::string seen;
  Server server([&](int socket, const std::string& request) {
    const std::lock_guard lock(mutex);
    seen = request;
    return answer_well(socket);
  });
  ServeTarget target = target_of(server);
  target.address = parse_server_address(server.url() + "/behind/v1/");
  target.headers = {{"Authorization", "Bearer k"}, {"x-tag", "7"}};
  run_requests(target, plan({R"({"a":1})"}), 0, nullptr);
  EXPECT_EQ(seen.find("POST /behind/v1/completions HTTP/1.1\r\n"), 0u) << seen;
  EXPECT_TRUE(has(seen, "Authorization: Bearer k\r\n")) << seen;
  EXPECT_TRUE(has(seen, "x-tag: 7\r\n"));
  EXPECT_TRUE(has(seen, "\r\n\r\n{\"a\":1}"));
}

TEST(ServeClient, AddressesThatAreNone) {
  for (const char* bad : {"",
                          "127.0.0.1:8000",
                          "ftp://x",
                          "http://",
                          "http:///v1",
                          "http://a b",
                          "http://user@host",
                          "http://h/?q"}) {
    EXPECT_NE(error_of([&] { parse_server_address(bad); }), "no error") << bad;
  }
  EXPECT_EQ(parse_server_address("http://h:1/v1").path_prefix, "");
  EXPECT_EQ(parse_server_address("http://h:1/p/").path_prefix, "/p");
}

TEST(ServeClient, GetIsBounded) {
  Server server([](int socket, const std::string&) {
    Server::send_whole(socket, "200 OK", std::string(1 << 20, 'x'));
    return true;
  });
  HttpClient client(parse_server_address(server.url()), {});
  const HttpClient::Answer answer = client.get("/metrics", {}, 1000);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.size(), 1000u);
}

}  // namespace
}  // namespace outrider
