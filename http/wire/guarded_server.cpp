// See guarded_server.h. The only server file that includes httplib (Debian's is a compiled library:
// its limits are frozen, so backlog, threads and deadlines are set from outside).
#include "http/wire/guarded_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "http/wire/api_error.h"
#include "http/wire/on_demand_threads.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kProbeConnections = 16;
constexpr size_t kUploadsInFlight = 2;  // of the largest size
// Such a body's memory is given back to the system at once: the allocator would keep it.
constexpr size_t kTrimmedBodyBytes = 1u << 20;

// Set on the accepting thread while it turns a connection away.
thread_local bool turning_away = false;

// The library's queue of accepted connections. Beyond the last thread the job runs at once on the
// accepting thread with turning_away set, which answers 503 without blocking.
class ConnectionQueue : public httplib::TaskQueue {
 public:
  using Job = std::function<void()>;
  // void in older versions of the library, bool (the job was taken) in newer ones.
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(Job()));

  explicit ConnectionQueue(size_t max_threads) : threads_(max_threads) {}

  Enqueued enqueue(Job job) override {
    if (!threads_.submit(job)) {
      turning_away = true;
      job();
      turning_away = false;
    }
    return Enqueued(true);
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

ServerResponse refusal(int status, const std::string& sentence, int retry_after_s) {
  ServerResponse response;
  response.status = status;
  response.body = error_json(status, sentence);
  if (status == 503) response.headers.emplace_back("Retry-After", std::to_string(retry_after_s));
  return response;
}

}  // namespace

class GuardedServer::Impl : public httplib::Server {
 public:
  Impl(const HttpOptions& options, GuardedServer::Handler handler, Kinds kinds)
      : options_(options),
        handler_(std::move(handler)),
        kinds_(std::move(kinds)),
        large_bodies_(options.connection.max_large_body_bytes_in_flight),
        uploads_(kUploadsInFlight * options.connection.max_upload_bytes) {
    probe_limits_ = options.connection;
    probe_limits_.head_timeout = std::min(probe_limits_.head_timeout, kProbeHeadTimeout);
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
  size_t num_connections() const {
    std::lock_guard lock(mutex_);
    return open_fds_.size();
  }
  uint64_t num_malformed_requests() const { return num_malformed_; }

 private:
  static constexpr std::chrono::milliseconds kProbeHeadTimeout{1000};

  enum class Lane : uint8_t { kNormal, kProbe, kRefused };

  bool process_and_close_socket(socket_t fd) override {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const std::string peer = peer_of(fd);
    const Lane lane = turning_away ? Lane::kRefused : enter(fd, peer);
    try {
      run_connection(fd, lane);
    } catch (const std::exception& error) {
      log_error("a connection ended by an error of ours: {}", error.what());
    }
    if (lane != Lane::kRefused) leave(fd, peer);
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
    return true;
  }

  Lane enter(int fd, const std::string& peer) {
    std::lock_guard lock(mutex_);
    const size_t most_of_peer = options_.connection.max_connections_per_peer;
    size_t& from_peer = peers_[peer];
    if (most_of_peer > 0 && !is_loopback(peer) && from_peer >= most_of_peer) return Lane::kRefused;
    ++from_peer;
    open_fds_.insert(fd);
    return open_fds_.size() > options_.connection.max_connections ? Lane::kProbe : Lane::kNormal;
  }

  void leave(int fd, const std::string& peer) {
    std::lock_guard lock(mutex_);
    const auto from_peer = peers_.find(peer);
    if (--from_peer->second == 0) peers_.erase(from_peer);
    open_fds_.erase(fd);
    if (open_fds_.empty()) all_closed_.notify_all();
  }

  void run_connection(int fd, Lane lane) {
    const ConnectionLimits& limits = lane == Lane::kNormal ? options_.connection : probe_limits_;
    Connection connection(fd, limits, stopping_);
    // Without a wait for what the client sends: other connections wait for this thread.
    if (lane == Lane::kRefused) return refuse(connection, 503, "too many connections");
    for (size_t served = 1;; ++served) {
      const bool may_follow = served < limits.max_requests_per_connection;
      if (!serve_request(connection, lane, may_follow)) return;
    }
  }

  // False when the connection is at its end.
  bool serve_request(Connection& connection, Lane lane, bool may_follow) {
    Connection::ReadResult result = connection.read_head();
    if (result == Connection::ReadResult::kDone && lane == Lane::kProbe &&
        !kinds_.probe(connection.head())) {
      refuse(connection, 503, "too many connections");
      connection.linger();
      return false;
    }
    RequestBody body;
    if (result == Connection::ReadResult::kDone)
      result = connection.read_body(limits_of(connection.head()), &body);
    if (result == Connection::ReadResult::kFault) {
      ++num_malformed_;
      refuse(connection, connection.fault().status, connection.fault().sentence);
      connection.linger();
    }
    if (result != Connection::ReadResult::kDone) return false;
    const bool is_trimmed = body.text.size() >= kTrimmedBodyBytes;
    const bool goes_on = respond(connection, std::move(body), may_follow);
    if (is_trimmed) trim_memory();
    return goes_on;
  }

  BodyLimits limits_of(const RequestHead& head) {
    const ConnectionLimits& limits = options_.connection;
    if (kinds_.upload(head)) return {limits.max_upload_bytes, limits.upload_timeout, &uploads_};
    return {limits.max_body_bytes, limits.body_timeout, &large_bodies_};
  }

  void refuse(Connection& connection, int status, const std::string& sentence) {
    send_response(connection, refusal(status, sentence, options_.retry_after_s), false);
  }

  bool respond(Connection& connection, RequestBody body, bool may_follow) {
    const bool keep_alive = may_follow && connection.head().keep_alive && !stopping_;
    ServerResponse response =
        handler_({.head = connection.head(), .body = std::move(body), .client_gone = [&] {
                    return connection.client_gone();
                  }});
    return send_response(connection, std::move(response), keep_alive) && !connection.client_gone();
  }

  static void trim_memory() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }

  const HttpOptions& options_;
  const GuardedServer::Handler handler_;
  const Kinds kinds_;
  ByteBudget large_bodies_;
  ByteBudget uploads_;
  ConnectionLimits probe_limits_;
  socket_t listen_fd_ = -1;
  int port_ = -1;
  std::thread listener_;
  std::atomic<bool> stopping_{false};

  std::atomic<uint64_t> num_malformed_{0};

  mutable std::mutex mutex_;
  std::condition_variable all_closed_;
  std::set<int> open_fds_;
  std::map<std::string, size_t> peers_;
};

GuardedServer::GuardedServer(const HttpOptions& options, Handler handler, Kinds kinds)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(kinds))) {}

GuardedServer::~GuardedServer() { stop(std::chrono::milliseconds(0)); }

void GuardedServer::start() { impl_->start(); }
int GuardedServer::port() const { return impl_->port(); }
size_t GuardedServer::num_connections() const { return impl_->num_connections(); }
uint64_t GuardedServer::num_malformed_requests() const { return impl_->num_malformed_requests(); }
void GuardedServer::stop(std::chrono::milliseconds grace) { impl_->shut_down(grace); }

}  // namespace outrider
