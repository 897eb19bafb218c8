// See tcp.h.
#include "runtime/comm/tcp.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

constexpr int kBacklog = 64;
constexpr int kLookMs = 50;
// A peer that is gone is noticed after so long, idle or not.
constexpr int kProbeAfterS = 2;
constexpr int kProbeIntervalS = 1;
constexpr int kNumProbes = 3;
constexpr int kUnacknowledgedMs = 5000;

Addresses resolve(const TcpAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int code = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (code != 0) throw Error(fmt::format("{}: {}", text_of(address), ::gai_strerror(code)));
  return {found, ::freeaddrinfo};
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(four.sin_addr.s_addr) >> 24) == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

// -1 with errno.
int listening_socket(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0)
    return fd;
  const int problem = errno;
  ::close(fd);
  errno = problem;
  return -1;
}

// A connected descriptor, or -1 with errno.
int try_address(const addrinfo& address, Clock::time_point end, const std::function<bool()>& over) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int problem = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  while (problem == EINPROGRESS) {
    pollfd one{fd, POLLOUT, 0};
    if (Clock::now() >= end || (over && over())) {
      problem = ETIMEDOUT;
    } else if (::poll(&one, 1, kLookMs) > 0) {
      socklen_t size = sizeof(problem);
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size);
    }
  }
  if (problem == 0) return fd;
  ::close(fd);
  errno = problem;
  return -1;
}

}  // namespace

TcpAddress parse_tcp_address(const std::string& text, const std::string& what) {
  TcpAddress address;
  const size_t colon = text.rfind(':');
  const char* const end = text.data() + text.size();
  const char* const port = colon == std::string::npos ? end : text.data() + colon + 1;
  const auto [rest, code] = std::from_chars(port, end, address.port);
  address.host = text.substr(0, colon);
  const bool is_bracketed = address.host.starts_with('[') && address.host.ends_with(']');
  if (is_bracketed) address.host = address.host.substr(1, address.host.size() - 2);
  const bool is_plain =
      address.host.find_first_of(is_bracketed ? "[]" : "[]:") == std::string::npos;
  if (code != std::errc() || rest != end || address.port < 0 || address.port > 65535 ||
      address.host.empty() || !is_plain)
    throw Error(fmt::format(
        "{}: '{}' is no address: give HOST:PORT, or [HOST]:PORT with IPv6", what, text));
  return address;
}

std::string text_of(const TcpAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return fmt::format("{}:{}", is_ipv6 ? "[" + address.host + "]" : address.host, address.port);
}

TcpListener::TcpListener(const TcpAddress& address, const std::string& loopback_only_because)
    : address_(address) {
  const Addresses found = resolve(address, AI_PASSIVE);
  for (const addrinfo* one = found.get(); one != nullptr && descriptor_ < 0; one = one->ai_next) {
    if (!loopback_only_because.empty() && !is_loopback(*one->ai_addr))
      throw Error(fmt::format("{}: {}", text_of(address), loopback_only_because));
    descriptor_ = listening_socket(*one);
  }
  if (descriptor_ < 0)
    throw Error(fmt::format("cannot listen on {}: {}", text_of(address), std::strerror(errno)));
  address_.port = port_of(descriptor_);
}

TcpListener::~TcpListener() { ::close(descriptor_); }

int TcpListener::accept() const {
  const int fd = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) tune_tcp(fd);
  return fd;
}

int connect_tcp(const TcpAddress& address, double timeout_s, const std::function<bool()>& is_over) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(timeout_s));
  const Addresses found = resolve(address, 0);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const int fd = try_address(*one, end, is_over);
    if (fd < 0) continue;
    tune_tcp(fd);
    return fd;
  }
  throw Error(fmt::format("cannot connect to {}: {}", text_of(address), std::strerror(errno)));
}

void tune_tcp(int descriptor) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(descriptor, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeIntervalS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kNumProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
}

std::string peer_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (::getpeername(descriptor, plain, &size) != 0 ||
      ::getnameinfo(
          plain, size, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) !=
          0)
    return "an unknown address";
  return text_of({host, std::atoi(port)});
}

}  // namespace outrider
