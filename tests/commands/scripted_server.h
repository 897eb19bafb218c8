// A server of plain sockets that answers as a script says, byte for byte: for clients that must
// bear with anything. One thread per connection.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace outrider {

class ScriptedServer {
 public:
  // What one request gets: called with the socket and the request's head and body; returns whether
  // the connection stays open.
  using Script = std::function<bool(int socket, const std::string& request)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 512) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no socket to listen on");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedServer() {
    closing_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    for (const int socket : sockets_) ::close(socket);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int num_connections() const { return num_connections_; }

  static void send(int socket, const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }
  static void send_head(int socket, const std::string& status = "200 OK") {
    send(socket,
         "HTTP/1.1 " + status +
             "\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  // One HTTP chunk, which need not be an event.
  static void send_chunk(int socket, const std::string& bytes) {
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    send(socket, size + bytes + "\r\n");
  }
  static void send_end(int socket) { send(socket, "0\r\n\r\n"); }
  static void send_whole(int socket, const std::string& status, const std::string& body) {
    send(socket,
         "HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // Until the client goes away.
  static void be_silent(int socket) {
    char byte = 0;
    while (::recv(socket, &byte, 1, 0) > 0) {
    }
  }

 private:
  void accept_all() {
    while (!closing_) {
      const int socket = ::accept(listener_, nullptr, nullptr);
      if (socket < 0) return;
      ++num_connections_;
      const std::lock_guard lock(mutex_);
      sockets_.push_back(socket);
      threads_.emplace_back([this, socket] {
        while (!closing_) {
          const std::string request = read_request(socket);
          if (request.empty() || !script_(socket, request)) break;
        }
        ::shutdown(socket, SHUT_RDWR);
      });
    }
  }

  static std::string read_request(int socket) {
    std::string request;
    char buffer[4096];
    while (true) {
      const size_t head = request.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t length = request.find("Content-Length: ");
        const size_t body = length < head ? std::stoul(request.substr(length + 16)) : 0;
        if (request.size() >= head + 4 + body) return request;
      }
      const ssize_t n = ::recv(socket, buffer, sizeof buffer, 0);
      if (n <= 0) return {};
      request.append(buffer, static_cast<size_t>(n));
    }
  }

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> closing_{false};
  std::atomic<int> num_connections_{0};
  std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace outrider
