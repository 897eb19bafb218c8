// See listener.h.
#include "http/wire/listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr int kBacklog = 1024;
// Until a closed connection has given back what the next one lacks.
constexpr std::chrono::milliseconds kPauseWhenFull{10};

int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

// -1 with errno.
int listening_socket(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // Not SO_REUSEPORT: two servers on one port must not share it silently.
  const int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0)
    return fd;
  const int problem = errno;
  ::close(fd);
  errno = problem;
  return -1;
}

// Makes way for a new socket file, or throws Error that says what is in the way.
void remove_stale_socket(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return;
  if (!S_ISSOCK(found.st_mode)) throw Error(fmt::format("uds: {} is there and is no socket", path));
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool answers =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int problem = errno;
  ::close(probe);
  if (answers || problem == EAGAIN)
    throw Error(fmt::format("uds: a running server listens on {}", path));
  if (problem != ECONNREFUSED)
    throw Error(fmt::format("uds: {} cannot be replaced: {}", path, std::strerror(problem)));
  ::unlink(path.c_str());
}

}  // namespace

std::string url_of(const HttpOptions& options, int port) {
  if (!options.uds.empty()) return "unix:" + options.uds;
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}",
                     options.has_tls() ? "https" : "http",
                     is_ipv6 ? "[" + options.host + "]" : options.host,
                     port);
}

Listener::Listener(const HttpOptions& options) {
  if (options.uds.empty()) {
    bind_tcp(options.host, options.port);
  } else {
    bind_unix(options.uds);
  }
}

Listener::~Listener() {
  close();
  ::close(fd_);
}

void Listener::bind_tcp(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0)
    throw Error(fmt::format("cannot listen on {} port {}: {}", host, port, ::gai_strerror(code)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr && fd_ < 0; address = address->ai_next)
    fd_ = listening_socket(*address);
  if (fd_ < 0)
    throw Error(fmt::format("cannot listen on {} port {}: {}", host, port, std::strerror(errno)));
  port_ = bound_port(fd_);
}

void Listener::bind_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    throw Error(fmt::format("uds: {} is longer than {} bytes", path, sizeof(address.sun_path) - 1));
  path.copy(address.sun_path, path.size());
  remove_stale_socket(path, address);
  addrinfo where{};
  where.ai_family = AF_UNIX;
  where.ai_addr = reinterpret_cast<sockaddr*>(&address);
  where.ai_addrlen = sizeof(address);
  fd_ = listening_socket(where);
  if (fd_ < 0) throw Error(fmt::format("uds: cannot listen on {}: {}", path, std::strerror(errno)));
  struct stat made {};
  ::lstat(path.c_str(), &made);
  path_ = path;
  device_ = made.st_dev;
  inode_ = made.st_ino;
}

int Listener::accept() {
  while (!is_closed_) {
    const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) return fd;
    const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (is_full) std::this_thread::sleep_for(kPauseWhenFull);
  }
  return -1;
}

void Listener::close() {
  if (is_closed_.exchange(true)) return;
  ::shutdown(fd_, SHUT_RDWR);  // ends a waiting accept()
  struct stat found {};
  // Somebody else may have replaced it.
  const bool is_ours = !path_.empty() && ::lstat(path_.c_str(), &found) == 0 &&
                       found.st_dev == device_ && found.st_ino == inode_;
  if (is_ours) ::unlink(path_.c_str());
}

}  // namespace outrider
