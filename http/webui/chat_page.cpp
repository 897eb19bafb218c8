// See chat_page.h.
#include "http/webui/chat_page.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "http/wire/access.h"

namespace outrider {

extern const std::string_view kChatPageText;  // made of index.html by CMake

ServerResponse chat_page() {
  constexpr std::string_view kMark = "nonce=\"NONCE\"";
  const std::string nonce = new_request_id();
  ServerResponse response{.content_type = "text/html; charset=utf-8",
                          .body = std::string(kChatPageText)};
  for (size_t at = response.body.find(kMark); at != std::string::npos;
       at = response.body.find(kMark, at)) {
    response.body.replace(at, kMark.size(), fmt::format("nonce=\"{}\"", nonce));
  }
  response.headers.emplace_back(
      "Content-Security-Policy",
      fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
                  "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                  "frame-ancestors 'none'",
                  nonce));
  response.headers.emplace_back("Cache-Control", "no-store");  // a nonce is used once
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  return response;
}

}  // namespace outrider
