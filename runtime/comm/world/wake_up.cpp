// See wake_up.h.
#include "runtime/comm/world/wake_up.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>

#include "runtime/comm/waiting.h"

namespace outrider {
namespace {

// Linux's abstract names: a leading zero byte, no file, gone with the socket.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void wait_for_any(pollfd* descriptors, nfds_t count, std::chrono::microseconds time) {
  use_fine_timers();
  const auto us = static_cast<long>(time.count());
  const timespec timeout{us / 1000000, us % 1000000 * 1000};
  ppoll(descriptors, count, &timeout, nullptr);
}

}  // namespace

WakeUpSocket::WakeUpSocket() {
  static_assert(kNameBytes < sizeof(sockaddr_un::sun_path));
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return;
  // The process number alone may be another's, in another container with the same network.
  std::random_device random;
  const std::string name = fmt::format("outrider-{}-{:08x}{:08x}", getpid(), random(), random());
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  if (bind(socket_, reinterpret_cast<const sockaddr*>(&address), size) == 0) name_ = name;
}

WakeUpSocket::~WakeUpSocket() {
  if (socket_ >= 0) close(socket_);
}

void WakeUpSocket::send_to(const std::string& name, char ring) const {
  if (name.empty() || name.size() > kNameBytes || socket_ < 0) return;
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  // A full queue is as good: its owner will wake.
  sendto(socket_, &ring, 1, MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
}

void WakeUpSocket::wait(std::chrono::microseconds time, int descriptor) const {
  pollfd descriptors[2] = {{socket_, POLLIN, 0}, {descriptor, POLLIN, 0}};  // -1 is passed over
  wait_for_any(descriptors, 2, time);
  if ((descriptors[0].revents & POLLIN) != 0) take_greetings();
}

int WakeUpSocket::take_greetings() const {
  int count = 0;
  char ring = 0;
  while (recv(socket_, &ring, 1, 0) >= 0) count += ring == kGreeting ? 1 : 0;
  return count;
}

void wait_readable(int descriptor, std::chrono::microseconds time) {
  pollfd one = {descriptor, POLLIN, 0};
  wait_for_any(&one, 1, time);
}

}  // namespace outrider
