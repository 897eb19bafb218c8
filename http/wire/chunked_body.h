// Reads a request body sent in chunks (RFC 9112, section 7.1) as its bytes come. Strict as the head
// reader: chunk extensions and trailers, which nobody needs here, are refused. Pure; no sockets.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "http/wire/api_error.h"

namespace outrider {

// 413 for a body over its limit.
ApiError body_too_large(size_t max_bytes);

class ChunkedBody {
 public:
  explicit ChunkedBody(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  // Takes what it understands from the front of *bytes and appends the payload to *body. False when
  // more bytes are needed; once it was true, or has thrown ApiError (400, 413), it must not be
  // called again.
  bool take(std::string* bytes, std::string* body);

 private:
  enum class Step { kSize, kData, kDataEnd, kLastEnd };
  bool take_step(std::string_view* rest, std::string* body);
  void take_size(std::string_view line);

  const size_t max_body_bytes_;
  Step step_ = Step::kSize;
  size_t chunk_bytes_left_ = 0;
};

}  // namespace outrider
