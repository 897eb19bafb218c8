// Strict reader of an HTTP/1.x request head: pure functions over bytes, no sockets. Whatever is
// unusual is refused (ApiError), not repaired: bare CR or LF, NUL, obs-fold, two Content-Lengths, a
// Transfer-Encoding other than chunked, Content-Encoding, a target that is not a plain path.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/wire/options.h"

namespace outrider {

struct RequestHead {
  std::string method;
  std::string path;                                          // percent-decoded, without the query
  std::string query;                                         // behind the ?, as sent
  int minor_version = 1;                                     // HTTP/1.x
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, values trimmed
  size_t content_length = 0;                                 // SIZE_MAX: more than fits
  bool is_chunked = false;                                   // then there is no content length
  bool keep_alive = true;
  bool expects_continue = false;

  // Empty when absent. The parser made sure that those we use come once.
  std::string_view header(std::string_view lower_case_name) const;
  bool has_header(std::string_view lower_case_name) const;
  bool has_body() const { return is_chunked || content_length > 0; }
};

// The size of the head in the bytes that have come so far, its empty line included; 0 when more are
// needed. Finds faults that need no complete head: a limit passed, a bare LF, a control character.
// `scanned` is where the last call left off; it is moved on.
size_t scan_head(std::string_view bytes, const ConnectionLimits& limits, size_t* scanned);

// Parses a complete head as found by scan_head().
RequestHead parse_head(std::string_view bytes, const ConnectionLimits& limits);

// "/llm/v1/models" is "/v1/models" below the root path "/llm", and "/llm" is "". Other paths stay.
void strip_root_path(std::string_view root_path, std::string* path);

}  // namespace outrider
