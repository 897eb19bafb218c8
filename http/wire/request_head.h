// Strict reader of an HTTP/1.x request head: pure functions over bytes, no sockets. Whatever is
// unusual is refused, not repaired: bare CR or LF, NUL, obs-fold, two Content-Lengths, a
// Transfer-Encoding other than chunked, Content-Encoding, a target that is not a plain path.
#pragma once

#include <cstddef>
#include <optional>
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

// Why a request was refused before it was routed.
struct HeadFault {
  int status = 400;
  std::string sentence;
};

struct HeadScan {
  size_t head_bytes = 0;  // including the empty line; 0 = more bytes are needed
  std::optional<HeadFault> fault;
};

// Looks for the end of the head in the bytes that have come so far, and for faults that need no
// complete head (a limit passed, a bare LF, a control character). `scanned` is where the last call
// left off; it is moved on.
HeadScan scan_head(std::string_view bytes, const ConnectionLimits& limits, size_t* scanned);

struct HeadResult {
  std::optional<RequestHead> head;
  HeadFault fault;  // when there is no head
};

// "/llm/v1/models" is "/v1/models" below the root path "/llm", and "/llm" is "". Other paths stay.
void strip_root_path(std::string_view root_path, std::string* path);

// Parses a complete head as found by scan_head().
HeadResult parse_head(std::string_view bytes, const ConnectionLimits& limits);

}  // namespace outrider
