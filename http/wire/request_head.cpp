// See request_head.h. RFC 9112 where it is strict, stricter where it lets a server choose.
#include "http/wire/request_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>

#include "http/wire/api_error.h"
#include "http/wire/header_text.h"

namespace outrider {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr size_t kMaxMethodBytes = 16;

bool is_token_char(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// nullopt for a broken escape or one that stands for a control character.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_value(text[i + 1]);
    const int low = hex_value(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    const int byte = high * 16 + low;
    if (byte < 0x20 || byte == 0x7f) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

ApiError bad(const std::string& sentence) { return ApiError(400, sentence); }

void parse_target(std::string_view target, RequestHead* head) {
  if (target.empty() || target.front() != '/') throw bad("the request target must be a path");
  for (const char c : target) {
    if (c <= 0x20 || c >= 0x7f || c == '#')
      throw bad("the request target has a character that is not allowed");
  }
  const size_t question = std::min(target.find('?'), target.size());
  const std::optional<std::string> path = percent_decoded(target.substr(0, question));
  if (!path) throw bad("the request target has a broken percent escape");
  head->path = *path;
  head->query = target.substr(std::min(question + 1, target.size()));
}

void parse_request_line(std::string_view line, RequestHead* head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    throw bad("the request line must be METHOD PATH HTTP/1.1");
  const std::string_view method = line.substr(0, first);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method) || method.size() > kMaxMethodBytes) throw bad("the method is not valid");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    const bool other = version.substr(0, 5) == "HTTP/";
    throw ApiError(other ? 505 : 400, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  }
  head->method = std::string(method);
  head->minor_version = version.back() - '0';
  parse_target(line.substr(first + 1, last - first - 1), head);
}

void parse_header_line(std::string_view line, RequestHead* head) {
  if (line.front() == ' ' || line.front() == '\t') throw bad("folded header lines are refused");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    throw bad("a header line has no valid name");
  const std::string_view value = trimmed(line.substr(colon + 1));
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f)
      throw bad("a header value has a control character");
  }
  head->headers.emplace_back(lower(line.substr(0, colon)), std::string(value));
}

// Headers that decide something may come once only: two of them are two readings of one request.
void check_single(const RequestHead& head) {
  constexpr std::array<std::string_view, 9> kSingle = {"host",
                                                       "content-length",
                                                       "content-type",
                                                       "transfer-encoding",
                                                       "content-encoding",
                                                       "authorization",
                                                       "x-api-key",
                                                       "expect",
                                                       "x-request-id"};
  for (const std::string_view name : kSingle) {
    const auto count = std::ranges::count_if(
        head.headers, [&](const auto& header) { return header.first == name; });
    if (count > 1) throw bad(fmt::format("the header {} must not be repeated", name));
  }
}

void read_content_length(RequestHead* head) {
  if (!head->has_header("content-length")) return;
  const std::string_view text = head->header("content-length");
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (text.empty() || !digits) throw bad("Content-Length must be a number");
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), head->content_length);
  if (error != std::errc{}) head->content_length = SIZE_MAX;
}

void read_transfer_encoding(RequestHead* head) {
  if (!head->has_header("transfer-encoding")) return;
  if (head->has_header("content-length"))
    throw bad("Transfer-Encoding together with Content-Length is refused");
  if (head->minor_version == 0) throw bad("Transfer-Encoding needs HTTP/1.1");
  if (lower(head->header("transfer-encoding")) != "chunked")
    throw ApiError(501, "the only Transfer-Encoding that is supported in requests is chunked");
  head->is_chunked = true;
}

void read_framing(RequestHead* head) {
  read_transfer_encoding(head);
  const std::string encoding = lower(head->header("content-encoding"));
  if (!encoding.empty() && encoding != "identity")
    throw ApiError(415, "Content-Encoding is not supported in requests");
  const std::string expect = lower(head->header("expect"));
  if (!expect.empty() && expect != "100-continue")
    throw ApiError(417, "this expectation is not supported");
  head->expects_continue = !expect.empty() && head->minor_version == 1;
  if (head->minor_version == 1 && head->header("host").empty()) throw bad("Host is missing");
  read_content_length(head);
}

bool wants_keep_alive(const RequestHead& head) {
  bool keep_alive = head.minor_version == 1;
  for (const auto& [name, value] : head.headers) {
    if (name != "connection") continue;
    const std::string tokens = lower(value);
    if (tokens.find("close") != std::string::npos) return false;
    if (tokens.find("keep-alive") != std::string::npos) keep_alive = true;
  }
  return keep_alive;
}

}  // namespace

std::string_view RequestHead::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

bool RequestHead::has_header(std::string_view lower_case_name) const {
  return std::ranges::any_of(headers,
                             [&](const auto& header) { return header.first == lower_case_name; });
}

size_t scan_head(std::string_view bytes, const ConnectionLimits& limits, size_t* scanned) {
  for (size_t& i = *scanned; i < bytes.size(); ++i) {
    if (i >= limits.max_head_bytes)
      throw ApiError(431, fmt::format("the head is larger than {} bytes", limits.max_head_bytes));
    const char c = bytes[i];
    if (c == '\0') throw bad("NUL in the head");
    if (c == '\n' && (i == 0 || bytes[i - 1] != '\r')) throw bad("bare LF in the head");
    if (i > 0 && bytes[i - 1] == '\r' && c != '\n') throw bad("bare CR in the head");
    if (c != '\n') continue;
    if (i == 1) throw bad("empty request line");
    if (i >= 3 && bytes.substr(i - 3, kLineEnd.size()) == kLineEnd) return ++i;
  }
  const bool in_first_line =
      bytes.substr(0, limits.max_request_line_bytes + 2).find('\n') == std::string_view::npos;
  if (in_first_line && bytes.size() > limits.max_request_line_bytes) {
    throw ApiError(
        414,
        fmt::format("the request line is longer than {} bytes", limits.max_request_line_bytes));
  }
  return 0;
}

RequestHead parse_head(std::string_view bytes, const ConnectionLimits& limits) {
  if (!bytes.ends_with("\r\n\r\n")) throw bad("the head has no end");
  const size_t first_end = bytes.find(kLineEnd);
  if (first_end > limits.max_request_line_bytes)
    throw ApiError(414, "the request line is too long");
  RequestHead head;
  parse_request_line(bytes.substr(0, first_end), &head);
  bytes.remove_prefix(first_end + kLineEnd.size());
  while (bytes.substr(0, kLineEnd.size()) != kLineEnd) {
    if (head.headers.size() == limits.max_headers)
      throw ApiError(431, fmt::format("more than {} headers", limits.max_headers));
    const size_t end = bytes.find(kLineEnd);
    if (end == std::string_view::npos) throw bad("the head has no end");
    parse_header_line(bytes.substr(0, end), &head);
    bytes.remove_prefix(end + kLineEnd.size());
  }
  check_single(head);
  read_framing(&head);
  head.keep_alive = wants_keep_alive(head);
  return head;
}

void strip_root_path(std::string_view root_path, std::string* path) {
  if (!path->starts_with(root_path)) return;
  if (path->size() == root_path.size() || (*path)[root_path.size()] == '/')
    path->erase(0, root_path.size());
}

}  // namespace outrider
