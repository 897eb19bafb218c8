// The reader of forms: the first line is the media type, the rest the body. What it takes is read
// again from a form made of it.
#include <string>

#include "http/batches/multipart.h"
#include "runtime/base/error.h"
#include "tests/fuzz/fuzz.h"

namespace {

using Parts = std::vector<outrider::FormPart>;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string form_of(const Parts& parts, const std::string& boundary) {
  std::string form;
  for (const outrider::FormPart& part : parts) {
    form += "--" + boundary + "\r\nContent-Disposition: form-data; name=" + quoted(part.name);
    if (part.filename) form += "; filename=" + quoted(*part.filename);
    form += "\r\n\r\n" + std::string(part.content) + "\r\n";
  }
  return form + "--" + boundary + "--\r\n";
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string bytes(reinterpret_cast<const char*>(data), num_bytes);
  const size_t line = std::min(bytes.find('\n'), num_bytes);
  const std::string body = bytes.substr(std::min(line + 1, num_bytes));
  Parts parts;
  try {
    parts = outrider::read_multipart(bytes.substr(0, line), body);
  } catch (const outrider::Error& error) {
    FUZZ_CHECK(std::string(error.what()).size() > 0);
    return 0;
  }
  std::string boundary = "again";
  for (const outrider::FormPart& part : parts) {
    FUZZ_CHECK(part.content.data() >= body.data());
    FUZZ_CHECK(part.content.data() + part.content.size() <= body.data() + body.size());
    while (part.content.find(boundary) != std::string::npos) boundary += 'x';
  }
  const std::string form = form_of(parts, boundary);
  if (parts.empty()) return 0;
  const Parts again = outrider::read_multipart("multipart/form-data; boundary=" + boundary, form);
  FUZZ_CHECK(again.size() == parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    FUZZ_CHECK(again[i].name == parts[i].name);
    FUZZ_CHECK(again[i].filename == parts[i].filename);
    FUZZ_CHECK(again[i].content == parts[i].content);
  }
  return 0;
}
