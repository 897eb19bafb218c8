// One accepted connection: reads requests under deadlines and caps, writes under a no-progress
// deadline, and tells whether the client is still there. Owned by the thread that serves the
// connection; client_gone() alone may be called from a handler further down the same thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "http/wire/byte_budget.h"
#include "http/wire/request_head.h"
#include "http/wire/transport.h"

namespace outrider {

// Of the next request's body.
struct BodyLimits {
  size_t max_bytes = 0;
  std::chrono::milliseconds timeout{0};
  ByteBudget* budget = nullptr;  // that a large one takes its bytes from while they come
};

class Connection {
 public:
  // Does not own the descriptor. `tls` may be null. `stopping` is watched while the connection is
  // idle.
  Connection(int fd,
             const TlsContext* tls,
             const ConnectionLimits& limits,
             const std::atomic<bool>& stopping);

  // The handshake of TLS, within the time that a head has. As the next two it throws ApiError for a
  // fault, to be answered before the connection is closed; false: there is nobody to answer.
  bool begin();
  // Read the next request, its head and then its body.
  bool read_head();
  bool read_body(const BodyLimits& limits, RequestBody* body);

  RequestHead& head() { return head_; }

  // False when the client is gone or took nothing for write_timeout. No write succeeds afterwards.
  bool write_all(std::string_view bytes);

  // The peer has closed or reset, or a write failed. Does not block and reads nothing.
  bool client_gone() const;

  // Ends our side and reads away for a moment what the client is still sending, so that a refusal
  // is not lost in a reset.
  void linger();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Wait : uint8_t { kReady, kTimeout, kStopped, kFailed };

  // events: as poll's.
  Wait wait_for(short events, Clock::time_point deadline, bool stop_when_asked) const;
  Wait wait_readable(Clock::time_point deadline) const;
  void wait_a_slice(Transport::Outcome outcome) const;
  // Appends what is there; false at the end of input or an error.
  bool receive();
  bool take_plain(std::string* text);
  bool wait_body_bytes(Clock::time_point start,
                       std::chrono::milliseconds timeout,
                       size_t num_so_far);

  int fd_;
  std::unique_ptr<Transport> transport_;
  const ConnectionLimits& limits_;
  const std::atomic<bool>& stopping_;
  std::string buffer_;  // received, not yet used
  RequestHead head_;
  bool write_failed_ = false;
  size_t num_requests_ = 0;
};

}  // namespace outrider
