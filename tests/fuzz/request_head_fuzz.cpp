// The head reader: a byte at a time finds what one look finds, and what it takes is consistent.
#include <string>

#include "http/wire/request_head.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  const ConnectionLimits limits;
  const std::string bytes(reinterpret_cast<const char*>(data), num_bytes);
  size_t scanned_whole = 0;
  const HeadScan whole = scan_head(bytes, limits, &scanned_whole);
  size_t scanned = 0;
  HeadScan piecewise;
  for (size_t size = 0; size <= num_bytes && !piecewise.fault && piecewise.head_bytes == 0; ++size)
    piecewise = scan_head(std::string_view(bytes).substr(0, size), limits, &scanned);
  FUZZ_CHECK(piecewise.head_bytes == whole.head_bytes);
  FUZZ_CHECK(piecewise.fault.has_value() == whole.fault.has_value());
  if (whole.head_bytes == 0) return 0;
  FUZZ_CHECK(whole.head_bytes <= num_bytes);
  const HeadResult result = parse_head(std::string_view(bytes).substr(0, whole.head_bytes), limits);
  if (!result.head) {
    FUZZ_CHECK(result.fault.status >= 400 && !result.fault.sentence.empty());
    return 0;
  }
  FUZZ_CHECK(result.head->path.starts_with('/'));
  FUZZ_CHECK(!(result.head->is_chunked && result.head->content_length > 0));
  return 0;
}
