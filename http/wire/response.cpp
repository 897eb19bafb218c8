// See response.h.
#include "http/wire/response.h"

#include <fmt/format.h>

#include "http/wire/connection.h"
#include "http/wire/options.h"

namespace outrider {
namespace {

const char* status_text(int status) {
  static constexpr std::pair<int, const char*> kTexts[] = {
      {200, "OK"},
      {307, "Temporary Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  for (const auto& [known, text] : kTexts) {
    if (known == status) return text;
  }
  return "Error";
}

// framing: the header that tells where the body ends.
std::string head_text(const ServerResponse& response, const std::string& framing, bool keep_alive) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (response.status == 429 || response.status == 503)
    text += fmt::format("Retry-After: {}\r\n", kRetryAfterS);
  text += fmt::format("Content-Type: {}\r\n", response.content_type);
  return text + framing +
         (keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

bool send_stream(Connection& connection, ByteSource& source, bool in_chunks) {
  for (bool more = true; more;) {
    if (connection.client_gone()) return false;
    std::string bytes;
    more = source.next(&bytes);
    if (in_chunks && !bytes.empty()) bytes = fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
    if (in_chunks && !more) bytes += "0\r\n\r\n";
    if (!connection.write_all(bytes)) return false;
  }
  return true;
}

}  // namespace

bool send_response(Connection& connection, ServerResponse response, bool keep_alive) {
  if (response.stream) {
    const bool in_chunks = connection.head().minor_version > 0;
    keep_alive = keep_alive && in_chunks;  // else the end of the connection ends the stream
    const char* framing = in_chunks ? "Transfer-Encoding: chunked\r\n" : "";
    return connection.write_all(head_text(response, framing, keep_alive)) &&
           send_stream(connection, *response.stream, in_chunks) && keep_alive;
  }
  const std::string framing = fmt::format("Content-Length: {}\r\n", response.body.size());
  std::string text = head_text(response, framing, keep_alive);
  if (connection.head().method != "HEAD") text += response.body;
  return connection.write_all(text) && keep_alive;
}

}  // namespace outrider
