// See connection.h.
#include "http/wire/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "http/wire/api_error.h"
#include "http/wire/chunked_body.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kSlice{
    50};  // how often a waiting connection looks at `stopping`
constexpr size_t kReceiveBytes = 16u << 10;

}  // namespace

Connection::Connection(int fd,
                       const TlsContext* tls,
                       const ConnectionLimits& limits,
                       const std::atomic<bool>& stopping)
    : fd_(fd),
      transport_(tls == nullptr ? plain_transport(fd) : tls->accept(fd)),
      limits_(limits),
      stopping_(stopping) {}

Connection::Wait Connection::wait_for(short events,
                                      Clock::time_point deadline,
                                      bool stop_when_asked) const {
  for (;;) {
    if (stop_when_asked && stopping_.load()) return Wait::kStopped;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Wait::kTimeout;
    pollfd entry{fd_, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min(left, kSlice).count()) + 1);
    if (ready > 0) return Wait::kReady;
    if (ready < 0 && errno != EINTR) return Wait::kFailed;
  }
}

Connection::Wait Connection::wait_readable(Clock::time_point deadline) const {
  return transport_->has_unread() ? Wait::kReady : wait_for(POLLIN, deadline, true);
}

// Before the transport is asked again; TLS may have to read in order to write, and the reverse.
void Connection::wait_a_slice(Transport::Outcome outcome) const {
  const short events = outcome == Transport::Outcome::kNeedsReadable ? POLLIN : POLLOUT;
  wait_for(events, Clock::now() + kSlice, false);
}

bool Connection::receive() {
  std::array<char, kReceiveBytes> chunk;
  const Transport::Result got = transport_->read(chunk.data(), chunk.size());
  buffer_.append(chunk.data(), got.num_bytes);
  if (got.outcome == Transport::Outcome::kNeedsWritable) wait_a_slice(got.outcome);
  return got.outcome != Transport::Outcome::kEnded;
}

bool Connection::begin() {
  const auto deadline = Clock::now() + limits_.head_timeout;
  for (;;) {
    const Transport::Outcome outcome = transport_->begin();
    if (outcome == Transport::Outcome::kDone) return true;
    if (outcome == Transport::Outcome::kEnded) return false;
    if (outcome == Transport::Outcome::kNotTls) {
      transport_ = plain_transport(fd_);
      throw ApiError(400, "this port speaks TLS: use https://");
    }
    const short events = outcome == Transport::Outcome::kNeedsReadable ? POLLIN : POLLOUT;
    if (wait_for(events, deadline, true) != Wait::kReady) return false;
  }
}

bool Connection::read_head() {
  // The first request has the head's time; later ones may keep the connection idle for a while
  // first.
  if (buffer_.empty() && num_requests_ > 0) {
    const Wait wait = wait_readable(Clock::now() + limits_.idle_timeout);
    if (wait != Wait::kReady) return false;
  }
  ++num_requests_;
  const auto deadline = Clock::now() + limits_.head_timeout;
  size_t scanned = 0;
  for (;;) {
    const size_t head_bytes = scan_head(buffer_, limits_, &scanned);
    if (head_bytes > 0) {
      head_ = parse_head(std::string_view(buffer_).substr(0, head_bytes), limits_);
      buffer_.erase(0, head_bytes);
      return true;
    }
    const Wait wait = wait_readable(deadline);
    if (wait == Wait::kTimeout && !buffer_.empty())
      throw ApiError(408, "the request head did not arrive in time");
    if (wait != Wait::kReady || !receive()) return false;
  }
}

bool Connection::read_body(const BodyLimits& limits, RequestBody* body) {
  if (!head_.has_body()) return true;
  if (head_.content_length > limits.max_bytes) throw body_too_large(limits.max_bytes);
  if (head_.expects_continue && buffer_.empty() && !write_all("HTTP/1.1 100 Continue\r\n\r\n"))
    return false;
  const auto start = Clock::now();
  ChunkedBody chunks(limits.max_bytes);
  for (;;) {
    if (head_.is_chunked ? chunks.take(&buffer_, &body->text) : take_plain(&body->text))
      return true;
    const size_t num_bytes = body->text.size();
    if (num_bytes > kLargeBodyBytes && !limits.budget->grow(&body->share, num_bytes))
      throw ApiError(503, "too many large requests at once");
    if (!wait_body_bytes(start, limits.timeout, num_bytes)) return false;
  }
}

// What has come of a body with a Content-Length. The text grows with what has come, never with what
// was announced.
bool Connection::take_plain(std::string* text) {
  const size_t taken = std::min(buffer_.size(), head_.content_length - text->size());
  text->append(buffer_, 0, taken);
  buffer_.erase(0, taken);
  return text->size() == head_.content_length;
}

bool Connection::wait_body_bytes(Clock::time_point start,
                                 std::chrono::milliseconds timeout,
                                 size_t num_so_far) {
  for (;;) {
    const auto elapsed = Clock::now() - start;
    const double due_s = std::chrono::duration<double>(elapsed - limits_.body_grace).count();
    if (static_cast<double>(num_so_far) < due_s * static_cast<double>(limits_.min_body_bytes_per_s))
      throw ApiError(408, "the request body came too slowly");
    if (elapsed >= timeout) throw ApiError(408, "the request body did not arrive in time");
    const auto next_look = std::min(start + timeout, Clock::now() + std::chrono::milliseconds(500));
    const Wait wait = wait_readable(next_look);
    if (wait == Wait::kTimeout) continue;
    return wait == Wait::kReady && receive();
  }
}

bool Connection::write_all(std::string_view bytes) {
  auto last_progress = Clock::now();
  while (!bytes.empty() && !write_failed_) {
    const Transport::Result sent = transport_->write(bytes);
    if (sent.outcome == Transport::Outcome::kDone) {
      bytes.remove_prefix(sent.num_bytes);
      last_progress = Clock::now();
    } else if (sent.outcome == Transport::Outcome::kEnded ||
               Clock::now() - last_progress > limits_.write_timeout) {
      write_failed_ = true;
    } else {
      wait_a_slice(sent.outcome);
    }
  }
  return !write_failed_;
}

bool Connection::client_gone() const {
  if (write_failed_) return true;
  // POLLRDHUP is reported even when unread (pipelined) bytes lie in front of the end of input.
  pollfd entry{fd_, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Connection::linger() {
  transport_->end_output();
  const auto deadline = Clock::now() + std::chrono::milliseconds(300);
  std::array<char, kReceiveBytes> sink;
  size_t total = 0;
  while (total < (1u << 20) && wait_for(POLLIN, deadline, false) == Wait::kReady) {
    const ssize_t got = ::recv(fd_, sink.data(), sink.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    total += static_cast<size_t>(got);
  }
}

}  // namespace outrider
