// See guarded_server.h.
#include "http/wire/guarded_server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "http/wire/access.h"
#include "http/wire/api_error.h"
#include "http/wire/listener.h"
#include "http/wire/on_demand_threads.h"
#include "http/wire/transport.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr size_t kProbeConnections = 16;
constexpr size_t kUploadsInFlight = 2;  // of the largest size
// Such a body's memory is given back to the system at once: the allocator would keep it.
constexpr size_t kTrimmedBodyBytes = 1u << 20;

// Empty: a Unix socket's.
std::string peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> name{};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family == AF_UNIX) return {};
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
  return peer.empty() || peer.starts_with("127.") || peer == "::1" ||
         peer.starts_with("::ffff:127.");
}

// Let in when all connections are taken.
bool is_probe(const RequestHead& head) { return head.method == "GET" && is_public_path(head.path); }

}  // namespace

class GuardedServer::Impl {
 public:
  Impl(const HttpOptions& options, Handler handler, IsUpload is_upload)
      : options_(options),
        handler_(std::move(handler)),
        is_upload_(std::move(is_upload)),
        large_bodies_(options.connection.max_large_body_bytes_in_flight),
        uploads_(kUploadsInFlight * options.connection.max_upload_bytes),
        threads_(options.connection.max_connections + kProbeConnections) {
    probe_limits_ = options.connection;
    probe_limits_.head_timeout = std::min(probe_limits_.head_timeout, kProbeHeadTimeout);
    probe_limits_.max_requests_per_connection = 1;
  }

  void start() {
    if (options_.has_tls()) tls_.emplace(options_.ssl_certfile, options_.ssl_keyfile);
    // OpenSSL writes to connections that may be gone; here that is an error, not the end.
    std::signal(SIGPIPE, SIG_IGN);
    listener_.emplace(options_);
    port_ = listener_->port();
    acceptor_ = std::thread([this] {
      set_thread_log_name("http");
      accept_all();
    });
  }

  void shut_down(std::chrono::milliseconds grace) {
    if (!acceptor_.joinable()) return;
    stopping_ = true;
    listener_->close();
    acceptor_.join();
    listener_.reset();
    const auto deadline = std::chrono::steady_clock::now() + grace;
    {
      std::unique_lock lock(mutex_);
      all_closed_.wait_until(lock, deadline, [&] { return open_fds_.empty(); });
      for (const int fd : open_fds_) ::shutdown(fd, SHUT_RDWR);
    }
    threads_.shutdown();
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

  void accept_all() {
    for (int fd = listener_->accept(); fd >= 0; fd = listener_->accept()) {
      // Beyond the last thread it is turned away on this one.
      if (!threads_.submit([this, fd] { serve_and_close(fd, false); })) serve_and_close(fd, true);
    }
  }

  void serve_and_close(int fd, bool is_turned_away) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const std::string peer = peer_of(fd);
    const Lane lane = is_turned_away ? Lane::kRefused : enter(fd, peer);
    try {
      run_connection(fd, lane);
    } catch (const std::exception& error) {
      log_error("a connection ended by an error of ours: {}", error.what());
    }
    if (lane != Lane::kRefused) leave(fd, peer);
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
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
    Connection connection(fd, tls_ ? &*tls_ : nullptr, limits, stopping_);
    // Without a wait for what the client sends: other connections wait for this thread. Under TLS
    // nothing can be said without one.
    if (lane == Lane::kRefused) {
      if (!tls_) refuse(connection, {503, "too many connections"});
      return;
    }
    try {
      if (!connection.begin()) return;
      for (size_t served = 1;; ++served) {
        const bool may_follow = served < limits.max_requests_per_connection;
        if (!serve_request(connection, lane, may_follow)) return;
      }
    } catch (const ApiError& fault) {
      ++num_malformed_;
      refuse(connection, fault);
      connection.linger();
    }
  }

  // False when the connection is at its end.
  bool serve_request(Connection& connection, Lane lane, bool may_follow) {
    if (!connection.read_head()) return false;
    strip_root_path(options_.root_path, &connection.head().path);
    if (lane == Lane::kProbe && !is_probe(connection.head())) {
      refuse(connection, {503, "too many connections"});
      connection.linger();
      return false;
    }
    RequestBody body;
    if (!connection.read_body(limits_of(connection.head()), &body)) return false;
    const bool is_trimmed = body.text.size() >= kTrimmedBodyBytes;
    const bool goes_on = respond(connection, std::move(body), may_follow);
    if (is_trimmed) trim_memory();
    return goes_on;
  }

  BodyLimits limits_of(const RequestHead& head) {
    const ConnectionLimits& limits = options_.connection;
    if (is_upload_(head)) return {limits.max_upload_bytes, limits.upload_timeout, &uploads_};
    return {limits.max_body_bytes, limits.body_timeout, &large_bodies_};
  }

  void refuse(Connection& connection, const ApiError& error) {
    send_response(connection, {.status = error.status(), .body = error_json(error)}, false);
  }

  bool respond(Connection& connection, RequestBody body, bool may_follow) {
    const bool keep_alive = may_follow && connection.head().keep_alive && !stopping_;
    try {
      ServerResponse response =
          handler_({.head = connection.head(), .body = std::move(body), .client_gone = [&] {
                      return connection.client_gone();
                    }});
      return send_response(connection, std::move(response), keep_alive) &&
             !connection.client_gone();
    } catch (const ApiError& error) {  // not the client's: an answer may have begun
      throw Error(error.what());
    }
  }

  static void trim_memory() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }

  const HttpOptions& options_;
  const Handler handler_;
  const IsUpload is_upload_;
  ByteBudget large_bodies_;
  ByteBudget uploads_;
  ConnectionLimits probe_limits_;
  std::optional<TlsContext> tls_;
  std::optional<Listener> listener_;
  int port_ = 0;
  std::thread acceptor_;
  OnDemandThreads threads_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> num_malformed_{0};

  mutable std::mutex mutex_;
  std::condition_variable all_closed_;
  std::set<int> open_fds_;
  std::map<std::string, size_t> peers_;
};

GuardedServer::GuardedServer(const HttpOptions& options, Handler handler, IsUpload is_upload)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(is_upload))) {}

GuardedServer::~GuardedServer() { stop(std::chrono::milliseconds(0)); }

void GuardedServer::start() { impl_->start(); }
int GuardedServer::port() const { return impl_->port(); }
size_t GuardedServer::num_connections() const { return impl_->num_connections(); }
uint64_t GuardedServer::num_malformed_requests() const { return impl_->num_malformed_requests(); }
void GuardedServer::stop(std::chrono::milliseconds grace) { impl_->shut_down(grace); }

}  // namespace outrider
