// See chunked_body.h.
#include "http/wire/chunked_body.h"

#include <algorithm>
#include <charconv>

namespace outrider {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";
constexpr size_t kMaxSizeDigits = 16;

}  // namespace

ChunkedBody::State ChunkedBody::take(std::string* bytes, std::string* body) {
  std::string_view rest = *bytes;
  State state = State::kMore;
  size_t before = 0;
  do {
    before = rest.size();
    state = take_step(&rest, body);
    if (body->size() > max_body_bytes_) state = State::kTooLarge;
  } while (state == State::kMore && rest.size() < before);
  bytes->erase(0, bytes->size() - rest.size());
  return state;
}

// One line or one piece of a chunk; takes nothing when it is not there yet.
ChunkedBody::State ChunkedBody::take_step(std::string_view* rest, std::string* body) {
  if (step_ == Step::kData) {
    const size_t taken = std::min(chunk_bytes_left_, rest->size());
    body->append(rest->substr(0, taken));
    rest->remove_prefix(taken);
    chunk_bytes_left_ -= taken;
    if (chunk_bytes_left_ == 0) step_ = Step::kDataEnd;
    return State::kMore;
  }
  // A size on a line of its own, or the empty line behind a chunk or all of them.
  const size_t most_digits = step_ == Step::kSize ? kMaxSizeDigits : 0;
  const size_t num_digits = std::min(rest->find_first_not_of(kHexDigits), rest->size());
  const std::string_view end = rest->substr(num_digits, kLineEnd.size());
  if (num_digits > most_digits || !kLineEnd.starts_with(end)) return State::kFault;
  if (end.size() < kLineEnd.size()) return State::kMore;
  const std::string_view line = rest->substr(0, num_digits);
  rest->remove_prefix(num_digits + kLineEnd.size());
  if (step_ == Step::kLastEnd) return State::kDone;
  if (step_ == Step::kSize) return take_size(line);
  step_ = Step::kSize;
  return State::kMore;
}

ChunkedBody::State ChunkedBody::take_size(std::string_view line) {
  const char* const end = line.data() + line.size();
  const auto [stopped, error] = std::from_chars(line.data(), end, chunk_bytes_left_, 16);
  if (error != std::errc{} || stopped != end) return State::kFault;
  if (chunk_bytes_left_ > max_body_bytes_) return State::kTooLarge;
  step_ = chunk_bytes_left_ == 0 ? Step::kLastEnd : Step::kData;
  return State::kMore;
}

}  // namespace outrider
