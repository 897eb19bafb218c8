// The real server over loopback sockets, and a client that speaks to it in bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/server.h"
#include "tests/http/http_fixture.h"

namespace outrider::testing {

using nlohmann::json;
using std::chrono::milliseconds;

// A plain blocking client socket.
class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  // Until the text has come, or the end.
  std::string read_until(const std::string& text) {
    while (received_.find(text) == std::string::npos && receive()) {
    }
    return received_;
  }
  std::string read_all() { return read_until("never sent by anyone \x01"); }
  // One response with a Content-Length; the rest stays for the next.
  std::string read_response() {
    read_until("\r\n\r\n");
    const size_t head = received_.find("\r\n\r\n");
    const size_t field = received_.find("Content-Length: ");
    if (head == std::string::npos || field == std::string::npos) return received_;
    const size_t length = std::stoul(received_.substr(field + 16));
    while (received_.size() < head + 4 + length && receive()) {
    }
    const std::string response = received_.substr(0, head + 4 + length);
    received_.erase(0, head + 4 + length);
    return response;
  }

 private:
  bool receive() {
    char chunk[4096];
    const ssize_t n = ::recv(fd_, chunk, sizeof(chunk), 0);
    if (n > 0) received_.append(chunk, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  std::string received_;
};

inline int status_of(const std::string& response) {
  return response.size() > 12 ? std::atoi(response.substr(9, 3).c_str()) : 0;
}

inline std::string post_bytes(const std::string& body,
                              const std::string& headers = "",
                              const std::string& path = "/v1/completions") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string get_bytes(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}

class Server : public HttpFixture {
 protected:
  void start() {
    server = std::make_unique<HttpServer>(options);
    server->start();
    opening.reset(new HttpServer::Opening(server->open(*service, metrics)));
  }
  std::string ask(const std::string& bytes) {
    Client client(server->port());
    client.send(bytes);
    return client.read_response();
  }
  // Polls; a test that would hang fails after a minute.
  template <typename Condition>
  bool eventually(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }
  // Where a connection has little time for its head. It is closed without a word when this thread
  // is held up before it sends: then it asks again.
  std::string ask_until_answered(const std::string& bytes) {
    std::string response;
    eventually([&] {
      response = ask(bytes);
      return !response.empty();
    });
    return response;
  }

  std::unique_ptr<HttpServer> server;
  std::unique_ptr<HttpServer::Opening> opening;
};

}  // namespace outrider::testing
