// The reader of chunked bodies: any cut of the bytes into pieces gives the same body and end.
#include <algorithm>
#include <string>

#include "http/wire/chunked_body.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kMaxBodyBytes = 1000;

struct Outcome {
  int status = 0;  // of the refusal; 0: none
  bool is_done = false;
  std::string body;
  std::string rest;
};

Outcome read_in_pieces(const std::string& bytes, size_t piece_bytes) {
  outrider::ChunkedBody reader(kMaxBodyBytes);
  Outcome out;
  size_t at = 0;
  try {
    do {
      out.rest += bytes.substr(at, piece_bytes);
      at = std::min(at + piece_bytes, bytes.size());
      out.is_done = reader.take(&out.rest, &out.body);
    } while (!out.is_done && at < bytes.size());
  } catch (const outrider::ApiError& error) {
    out.status = error.status();
  }
  out.rest += bytes.substr(at);
  return out;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string bytes(reinterpret_cast<const char*>(data), num_bytes);
  const Outcome whole = read_in_pieces(bytes, num_bytes + 1);
  for (const size_t piece_bytes : {size_t{1}, size_t{2}, size_t{7}}) {
    const Outcome pieces = read_in_pieces(bytes, piece_bytes);
    FUZZ_CHECK(pieces.status == whole.status && pieces.is_done == whole.is_done);
    if (!whole.is_done) continue;
    FUZZ_CHECK(pieces.body == whole.body);
    FUZZ_CHECK(pieces.rest == whole.rest);
  }
  if (whole.is_done) FUZZ_CHECK(whole.body.size() <= kMaxBodyBytes);
  return 0;
}
