// A client for one connection at a time, for commands that talk to a server (chat, bench serve).
// cpp-httplib does the talking; what it reads is handed on as it comes. One thread uses a client.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

// Where a server is: "http://host:port" and the path before its routes ("" or "/prefix").
struct ServerAddress {
  std::string origin;
  std::string path_prefix;
};

// Of a URL like http://127.0.0.1:8000 or https://example.org/api/. Throws Error that says what a
// good one is. A trailing slash is dropped; so is a trailing /v1, since routes bring their own.
ServerAddress parse_server_address(const std::string& url);

enum class HttpOutcome {
  kDone,  // an answer was read to its end
  kNoConnection,
  kTimeout,  // no byte came for as long as the client waits
  kBroken,   // the connection ended, or what came was not HTTP
  kStopped   // on_bytes wanted no more
};

struct HttpExchange {
  std::string path;  // after the address's prefix
  std::vector<std::pair<std::string, std::string>> headers;
  std::string_view body;  // JSON, sent with POST; empty = GET
  // Called on the caller's thread: once when the head has come, then with every piece of the body
  // as it was read from the socket. on_bytes returns false to stop.
  std::function<void(int status)> on_head;
  std::function<bool(std::string_view bytes)> on_bytes;
};

class HttpClient {
 public:
  struct Timeouts {
    std::chrono::milliseconds connect{10000};
    std::chrono::milliseconds read{600000};  // without a byte
  };
  HttpClient(ServerAddress address, Timeouts timeouts);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The connection is kept for the next exchange while the server does; one that was idle for long
  // is not used again, since the server may be closing it.
  HttpOutcome exchange(const HttpExchange& exchange);
  // Breaks off the exchange under way, whatever it waits for. May be called on another thread.
  void stop();

  struct Answer {
    HttpOutcome outcome = HttpOutcome::kNoConnection;
    int status = 0;
    std::string body;  // at most max_bytes
  };
  Answer get(const std::string& path,
             const std::vector<std::pair<std::string, std::string>>& headers,
             size_t max_bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
