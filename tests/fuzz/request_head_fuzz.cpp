// The head reader: a byte at a time finds what one look finds, and what it takes is consistent.
#include <string>

#include "http/wire/api_error.h"
#include "http/wire/request_head.h"
#include "tests/fuzz/fuzz.h"

namespace {

const outrider::ConnectionLimits kLimits;

// The head's size; 0: more is needed, -1: refused.
int64_t scan(std::string_view bytes, size_t* scanned) {
  try {
    return static_cast<int64_t>(outrider::scan_head(bytes, kLimits, scanned));
  } catch (const outrider::ApiError&) {
    return -1;
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string bytes(reinterpret_cast<const char*>(data), num_bytes);
  size_t scanned_whole = 0;
  const int64_t whole = scan(bytes, &scanned_whole);
  size_t scanned = 0;
  int64_t piecewise = 0;
  for (size_t size = 0; size <= num_bytes && piecewise == 0; ++size)
    piecewise = scan(std::string_view(bytes).substr(0, size), &scanned);
  FUZZ_CHECK(piecewise == whole);
  if (whole <= 0) return 0;
  const auto head_bytes = static_cast<size_t>(whole);
  FUZZ_CHECK(head_bytes <= num_bytes);
  try {
    const outrider::RequestHead head =
        outrider::parse_head(std::string_view(bytes).substr(0, head_bytes), kLimits);
    FUZZ_CHECK(head.path.starts_with('/'));
    FUZZ_CHECK(!(head.is_chunked && head.content_length > 0));
  } catch (const outrider::ApiError& error) {
    FUZZ_CHECK(error.status() >= 400 && *error.what() != '\0');
  }
  return 0;
}
