// See message_socket.h. A message is its length in 4 bytes, then its bytes.
#include "runtime/comm/message_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace outrider {
namespace {

constexpr size_t kChunkBytes = 64 * 1024;
constexpr size_t kLeastSentBytes = 64 * 1024;  // given back before all is sent

}  // namespace

MessageSocket::MessageSocket(int descriptor, size_t max_message_bytes)
    : descriptor_(descriptor), max_message_bytes_(max_message_bytes), chunk_(kChunkBytes) {
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) | O_NONBLOCK);
  fcntl(descriptor_, F_SETFD, FD_CLOEXEC);
}

MessageSocket::~MessageSocket() { close(descriptor_); }

void MessageSocket::post(const Bytes& message) {
  if (closed_) return;
  const Bytes length = wire_bytes(static_cast<uint32_t>(message.size()));
  outgoing_.insert(outgoing_.end(), length.begin(), length.end());
  outgoing_.insert(outgoing_.end(), message.begin(), message.end());
  send_some();
}

std::optional<Bytes> MessageSocket::poll() {
  send_some();
  receive_some();
  if (incoming_.size() < sizeof(uint32_t)) return std::nullopt;
  const auto length = WireReader(incoming_).get<uint32_t>();
  if (length > max_message_bytes_) {
    closed_ = true;
    incoming_.clear();
    return std::nullopt;
  }
  const size_t end = sizeof(uint32_t) + length;
  if (incoming_.size() < end) return std::nullopt;
  const auto begin = incoming_.begin();
  Bytes message(begin + sizeof(uint32_t), begin + static_cast<ptrdiff_t>(end));
  incoming_.erase(begin, begin + static_cast<ptrdiff_t>(end));
  return message;
}

void MessageSocket::send_some() {
  while (num_sent_ < outgoing_.size()) {
    const ssize_t sent =
        send(descriptor_, outgoing_.data() + num_sent_, outgoing_.size() - num_sent_, MSG_NOSIGNAL);
    if (sent < 0) {
      // A reset is noticed by receive_some, which first hands out what came before it.
      if (errno != EAGAIN && errno != EINTR) num_sent_ = outgoing_.size();
      break;
    }
    num_sent_ += static_cast<size_t>(sent);
  }
  if (num_sent_ < outgoing_.size() && num_sent_ < kLeastSentBytes) return;
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(num_sent_));
  num_sent_ = 0;
}

void MessageSocket::receive_some() {
  // What is more than one message waits in the socket: a peer that floods fills no memory.
  while (!closed_ && incoming_.size() < sizeof(uint32_t) + max_message_bytes_) {
    const ssize_t received = recv(descriptor_, chunk_.data(), chunk_.size(), 0);
    if (received > 0) {
      incoming_.insert(incoming_.end(), chunk_.begin(), chunk_.begin() + received);
      continue;
    }
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return;
    closed_ = true;
  }
}

}  // namespace outrider
