// See guarded_server.h. The only file that includes httplib (Debian's 0.11.4 is a compiled library:
// its limits are frozen, so backlog, threads and deadlines are set from outside).
#include "http/guarded_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "http/connection.h"
#include "http/on_demand_threads.h"
#include "http/openai_response.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kProbeConnections = 16;

// What the handler of the library may reach of the request that its thread serves.
struct ActiveRequest {
  Connection* connection = nullptr;
};
thread_local ActiveRequest active_request;
// Set on the accepting thread while it turns a connection away.
thread_local bool turning_away = false;

// The library reads a fixed head from here and writes to the guarded connection.
class GuardedStream : public httplib::Stream {
 public:
  GuardedStream(Connection& connection, std::string head)
      : connection_(connection), head_(std::move(head)) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !connection_.client_gone(); }
  ssize_t read(char* out, size_t size) override {
    const size_t taken = std::min(size, head_.size() - position_);
    std::copy_n(head_.data() + position_, taken, out);
    position_ += taken;
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* bytes, size_t size) override {
    return connection_.write_all({bytes, size}) ? static_cast<ssize_t>(size) : -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return connection_.fd(); }

 private:
  Connection& connection_;
  std::string head_;
  size_t position_ = 0;
};

// The library's queue of accepted connections. Beyond the last thread the job runs at once on the
// accepting thread with turning_away set, which answers 503 without blocking.
class ConnectionQueue : public httplib::TaskQueue {
 public:
  explicit ConnectionQueue(size_t max_threads) : threads_(max_threads) {}

  void enqueue(std::function<void()> job) override {
    if (threads_.submit(job)) return;
    turning_away = true;
    job();
    turning_away = false;
  }
  void shutdown() override { threads_.shutdown(); }

 private:
  OnDemandThreads threads_;
};

std::string peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> name{};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&address),
                    size,
                    name.data(),
                    name.size(),
                    nullptr,
                    0,
                    NI_NUMERICHOST) != 0) {
    return {};
  }
  return name.data();
}

bool is_loopback(const std::string& peer) {
  return peer.empty() || peer.rfind("127.", 0) == 0 || peer == "::1";
}

std::string refusal(int status, const std::string& sentence, int retry_after_s) {
  const std::string body = error_json(status, sentence);
  const std::string retry =
      status == 503 ? fmt::format("Retry-After: {}\r\n", retry_after_s) : std::string();
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}"
      "Connection: close\r\n\r\n{}",
      status,
      status_text(status),
      body.size(),
      retry,
      body);
}

}  // namespace

class GuardedServer::Impl : public httplib::Server {
 public:
  Impl(const HttpOptions& options,
       ServingMetrics& metrics,
       GuardedServer::Handler handler,
       IsProbe is_probe)
      : options_(options),
        metrics_(metrics),
        handler_(std::move(handler)),
        is_probe_(std::move(is_probe)) {
    probe_limits_ = options.connection;
    probe_limits_.head_timeout = std::min(probe_limits_.head_timeout, kProbeHeadTimeout);
    probe_limits_.max_body_bytes = 0;
    probe_limits_.max_requests_per_connection = 1;
    new_task_queue = [this] {
      return new ConnectionQueue(options_.connection.max_connections + kProbeConnections);
    };
    set_socket_options([this](socket_t fd) {
      // Not SO_REUSEPORT, the library's default: two servers on one port must not share it
      // silently.
      const int on = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      listen_fd_ = fd;
    });
    set_keep_alive_max_count(options.connection.max_requests_per_connection);
    set_keep_alive_timeout(
        std::chrono::duration_cast<std::chrono::seconds>(options.connection.idle_timeout).count());
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      serve(*active_request.connection, response);
      return HandlerResponse::Handled;
    });
  }

  void start() {
    if (options_.port == 0) {
      port_ = bind_to_any_port(options_.host);
    } else {
      port_ = bind_to_port(options_.host, options_.port) ? options_.port : -1;
    }
    if (port_ <= 0) {
      throw Error(fmt::format("cannot listen on {} port {}: the address is in use or not ours",
                              options_.host,
                              options_.port));
    }
    ::listen(listen_fd_, kBacklog);  // the library's own backlog is 5
    listener_ = std::thread([this] {
      set_thread_log_name("http");
      listen_after_bind();
    });
    while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void shut_down(std::chrono::milliseconds grace) {
    if (!listener_.joinable()) return;
    stopping_ = true;
    stop();
    const auto deadline = std::chrono::steady_clock::now() + grace;
    {
      std::unique_lock lock(mutex_);
      all_closed_.wait_until(lock, deadline, [&] { return open_fds_.empty(); });
      for (const int fd : open_fds_) ::shutdown(fd, SHUT_RDWR);
    }
    listener_.join();
  }

  int port() const { return port_; }

 private:
  static constexpr std::chrono::milliseconds kProbeHeadTimeout{1000};

  enum class Lane : uint8_t { kNormal, kProbe, kRefused };

  bool process_and_close_socket(socket_t fd) override {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const std::string peer = peer_of(fd);
    const Lane lane = turning_away ? Lane::kRefused : enter(fd, peer);
    if (lane == Lane::kRefused) {
      const std::string text = refusal(503, "too many connections", options_.retry_after_s);
      ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
      run_connection(fd, lane);
      leave(fd, peer);
    }
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
    return true;
  }

  Lane enter(int fd, const std::string& peer) {
    std::lock_guard lock(mutex_);
    size_t& from_peer = peers_[peer];
    if (!is_loopback(peer) && from_peer >= options_.connection.max_connections_per_peer) {
      return Lane::kRefused;
    }
    ++from_peer;
    open_fds_.insert(fd);
    metrics_.http_connections.set(static_cast<double>(open_fds_.size()));
    return open_fds_.size() > options_.connection.max_connections ? Lane::kProbe : Lane::kNormal;
  }

  void leave(int fd, const std::string& peer) {
    std::lock_guard lock(mutex_);
    const auto from_peer = peers_.find(peer);
    if (--from_peer->second == 0) peers_.erase(from_peer);
    open_fds_.erase(fd);
    metrics_.http_connections.set(static_cast<double>(open_fds_.size()));
    if (open_fds_.empty()) all_closed_.notify_all();
  }

  void run_connection(int fd, Lane lane) {
    const ConnectionLimits& limits = lane == Lane::kProbe ? probe_limits_ : options_.connection;
    Connection connection(fd, limits, stopping_);
    for (size_t served = 0; served < limits.max_requests_per_connection; ++served) {
      const Connection::ReadResult result = connection.read_request();
      if (result == Connection::ReadResult::kClosed) return;
      if (result == Connection::ReadResult::kFault) {
        metrics_.http_requests_malformed.add();
        refuse(connection, connection.fault().status, connection.fault().sentence);
        return;
      }
      if (lane == Lane::kProbe && !is_probe_(connection.head())) {
        refuse(connection, 503, "too many connections");
        return;
      }
      const bool last = served + 1 == limits.max_requests_per_connection ||
                        !connection.head().keep_alive || stopping_;
      const bool goes_on = respond(connection, last);
      connection.release_body();
      if (!goes_on) return;
    }
  }

  void refuse(Connection& connection, int status, const std::string& sentence) {
    connection.write_all(refusal(status, sentence, options_.retry_after_s));
    connection.linger();
  }

  // The library answers one request; false when the connection is at its end.
  bool respond(Connection& connection, bool last) {
    const bool head_only = connection.head().method == "HEAD";
    GuardedStream stream(
        connection,
        head_only ? "HEAD / HTTP/1.1\r\n\r\n" : "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    active_request.connection = &connection;
    bool closed = false;
    const bool written = process_request(stream, last, closed, nullptr);
    active_request.connection = nullptr;
    return written && !closed && !last && !connection.client_gone();
  }

  void serve(Connection& connection, httplib::Response& response) {
    const ServerRequest request{
        connection.head(), connection.body(), [&connection] { return connection.client_gone(); }};
    ServerResponse reply = handler_(request);
    if (reply.stream && connection.head().minor_version == 0) {
      reply.stream.reset();
      reply.status = 400;
      reply.body = error_json(400, "streaming needs HTTP/1.1");
      reply.content_type = "application/json";
    }
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
      response.set_content(reply.body, reply.content_type);
      return;
    }
    response.set_chunked_content_provider(
        reply.content_type,
        [source = std::shared_ptr<ByteSource>(std::move(reply.stream)), &connection](
            size_t, httplib::DataSink& sink) {
          if (connection.client_gone()) return false;
          std::string bytes;
          const bool more = source->next(&bytes);
          if (!bytes.empty() && !sink.write(bytes.data(), bytes.size())) return false;
          if (!more) sink.done();
          return true;
        });
  }

  const HttpOptions& options_;
  ServingMetrics& metrics_;
  GuardedServer::Handler handler_;
  IsProbe is_probe_;
  ConnectionLimits probe_limits_;
  socket_t listen_fd_ = -1;
  int port_ = -1;
  std::thread listener_;
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  std::condition_variable all_closed_;
  std::set<int> open_fds_;
  std::map<std::string, size_t> peers_;
};

GuardedServer::GuardedServer(const HttpOptions& options,
                             ServingMetrics& metrics,
                             Handler handler,
                             IsProbe is_probe)
    : impl_(std::make_unique<Impl>(options, metrics, std::move(handler), std::move(is_probe))) {}

GuardedServer::~GuardedServer() { stop(std::chrono::milliseconds(0)); }

void GuardedServer::start() { impl_->start(); }
int GuardedServer::port() const { return impl_->port(); }
void GuardedServer::stop(std::chrono::milliseconds grace) { impl_->shut_down(grace); }

const char* status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

}  // namespace outrider
