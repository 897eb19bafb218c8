// See chunked_body.h.
#include "http/wire/chunked_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace outrider {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";
constexpr size_t kMaxSizeDigits = 16;

ApiError not_valid() { return ApiError(400, "the chunks of the body are not valid"); }

}  // namespace

ApiError body_too_large(size_t max_bytes) {
  return ApiError(413, fmt::format("the body is larger than the limit of {} bytes", max_bytes));
}

bool ChunkedBody::take(std::string* bytes, std::string* body) {
  std::string_view rest = *bytes;
  bool is_done = false;
  size_t before = 0;
  do {
    before = rest.size();
    is_done = take_step(&rest, body);
    if (body->size() > max_body_bytes_) throw body_too_large(max_body_bytes_);
  } while (!is_done && rest.size() < before);
  bytes->erase(0, bytes->size() - rest.size());
  return is_done;
}

// One line or one piece of a chunk; takes nothing when it is not there yet.
bool ChunkedBody::take_step(std::string_view* rest, std::string* body) {
  if (step_ == Step::kData) {
    const size_t taken = std::min(chunk_bytes_left_, rest->size());
    body->append(rest->substr(0, taken));
    rest->remove_prefix(taken);
    chunk_bytes_left_ -= taken;
    if (chunk_bytes_left_ == 0) step_ = Step::kDataEnd;
    return false;
  }
  // A size on a line of its own, or the empty line behind a chunk or all of them.
  const size_t most_digits = step_ == Step::kSize ? kMaxSizeDigits : 0;
  const size_t num_digits = std::min(rest->find_first_not_of(kHexDigits), rest->size());
  const std::string_view end = rest->substr(num_digits, kLineEnd.size());
  if (num_digits > most_digits || !kLineEnd.starts_with(end)) throw not_valid();
  if (end.size() < kLineEnd.size()) return false;
  const std::string_view line = rest->substr(0, num_digits);
  rest->remove_prefix(num_digits + kLineEnd.size());
  if (step_ == Step::kLastEnd) return true;
  if (step_ == Step::kSize) {
    take_size(line);
  } else {
    step_ = Step::kSize;
  }
  return false;
}

void ChunkedBody::take_size(std::string_view line) {
  const char* const end = line.data() + line.size();
  const auto [stopped, error] = std::from_chars(line.data(), end, chunk_bytes_left_, 16);
  if (error != std::errc{} || stopped != end) throw not_valid();
  if (chunk_bytes_left_ > max_body_bytes_) throw body_too_large(max_body_bytes_);
  step_ = chunk_bytes_left_ == 0 ? Step::kLastEnd : Step::kData;
}

}  // namespace outrider
