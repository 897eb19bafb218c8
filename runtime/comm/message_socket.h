// Whole messages over a stream socket, without ever waiting: what cannot be sent or is not whole
// yet stays in a buffer. Between the draft rank and its engine, and over TCP between the
// coordinator and a draft outside the job; one thread on each side.
#pragma once

#include <cstddef>
#include <optional>

#include "runtime/comm/wire.h"

namespace outrider {

class MessageSocket {
 public:
  // Whoever says that a message is longer is cut off: nothing is kept of it.
  static constexpr size_t kMaxMessageBytes = 64u << 20;

  // Takes the descriptor over.
  explicit MessageSocket(int descriptor, size_t max_message_bytes = kMaxMessageBytes);
  ~MessageSocket();
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  void post(const Bytes& message);
  std::optional<Bytes> poll();  // the next whole message; also sends what is left to send
  bool closed() const { return closed_; }  // the other end is gone, and poll() gave all that came
  size_t num_unsent_bytes() const { return outgoing_.size() - num_sent_; }
  // For waits until there is something to receive.
  int descriptor() const { return descriptor_; }
  // From now on for messages of that length at most.
  void set_max_message_bytes(size_t bytes) { max_message_bytes_ = bytes; }

 private:
  void send_some();
  void receive_some();

  int descriptor_;
  size_t max_message_bytes_;
  Bytes outgoing_;
  size_t num_sent_ = 0;
  Bytes incoming_;
  Bytes chunk_;  // what the socket writes into
  bool closed_ = false;
};

}  // namespace outrider
