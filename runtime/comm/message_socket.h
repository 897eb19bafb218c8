// Whole messages over a stream socket between two processes of one host, without ever waiting: what
// cannot be sent or is not whole yet stays in a buffer. Used between the draft rank and its engine.
#pragma once

#include <cstddef>
#include <optional>

#include "runtime/comm/wire.h"

namespace outrider {

class MessageSocket {
 public:
  explicit MessageSocket(int descriptor);  // takes the descriptor over
  ~MessageSocket();
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  void post(const Bytes& message);
  std::optional<Bytes> poll();  // the next whole message; also sends what is left to send
  bool closed() const { return closed_; }  // the other end is gone and nothing whole is left
  size_t num_unsent_bytes() const { return outgoing_.size() - num_sent_; }
  // For waits until there is something to receive.
  int descriptor() const { return descriptor_; }

 private:
  void send_some();
  void receive_some();

  int descriptor_;
  Bytes outgoing_;
  size_t num_sent_ = 0;
  Bytes incoming_;
  Bytes chunk_;  // what the socket writes into
  bool closed_ = false;
};

}  // namespace outrider
