// See access.h.
#include "http/wire/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "http/wire/header_text.h"

namespace outrider {
namespace {

constexpr size_t kMaxKeyBytes = 512;

std::string_view sent_key(const RequestHead& head) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = head.header("authorization");
  if (lower(authorization.substr(0, kBearer.size())) == kBearer) {
    return authorization.substr(kBearer.size());
  }
  return head.header("x-api-key");
}

bool includes(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

bool is_allowed_origin(const RequestHead& head, const CorsOptions& cors) {
  const std::string_view origin = head.header("origin");
  return !origin.empty() &&
         (includes(cors.allowed_origins, "*") || includes(cors.allowed_origins, origin));
}

}  // namespace

bool equal_in_fixed_time(std::string_view a, std::string_view b) {
  const auto byte_at = [](std::string_view text, size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : static_cast<unsigned char>(0);
  };
  unsigned difference = a.size() == b.size() ? 0 : 1;
  difference |= a.size() > kMaxKeyBytes ? 1 : 0;
  for (size_t i = 0; i < kMaxKeyBytes; ++i) difference |= byte_at(a, i) ^ byte_at(b, i);
  return difference == 0;
}

bool is_public_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);  // as the service reads it
  return path == "/health" || path == "/livez" || path == "/readyz" || path == "/health/ready" ||
         path == "/metrics" || path == "/ping";
}

bool lacks_key(const RequestHead& head, const std::vector<std::string>& keys) {
  if (keys.empty()) return false;
  const std::string_view sent = sent_key(head);
  bool found = false;
  for (const std::string& key : keys) found |= equal_in_fixed_time(sent, key) && !sent.empty();
  return !found;
}

bool is_foreign_origin(const RequestHead& head, const CorsOptions& cors) {
  const std::string origin = lower(head.header("origin"));
  if (origin.empty() || is_allowed_origin(head, cors)) return false;
  // Pages cannot send a header that begins with Sec-.
  if (head.header("sec-fetch-site") == "same-origin") return false;
  const std::string_view forwarded = head.header("x-forwarded-host");
  for (const std::string_view own :
       {head.header("host"), forwarded.substr(0, forwarded.find(','))}) {
    const std::string host = lower(own);
    if (!host.empty() && (origin == "http://" + host || origin == "https://" + host)) return false;
  }
  return true;
}

bool is_preflight(const RequestHead& head) {
  return head.method == "OPTIONS" && head.has_header("origin") &&
         head.has_header("access-control-request-method");
}

std::vector<std::pair<std::string, std::string>> cors_headers(const RequestHead& head,
                                                              const CorsOptions& cors) {
  if (!is_allowed_origin(head, cors)) return {};
  // The origin itself also where any is allowed: browsers take no * together with credentials.
  std::vector<std::pair<std::string, std::string>> headers = {
      {"Access-Control-Allow-Origin", std::string(head.header("origin"))}, {"Vary", "Origin"}};
  if (cors.allow_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  if (!is_preflight(head)) {
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    return headers;
  }
  const auto list = [&](const std::vector<std::string>& allowed, std::string_view asked) {
    return includes(allowed, "*") ? std::string(head.header(asked))
                                  : fmt::format("{}", fmt::join(allowed, ", "));
  };
  headers.emplace_back("Access-Control-Allow-Methods",
                       list(cors.allowed_methods, "access-control-request-method"));
  const std::string fields = list(cors.allowed_headers, "access-control-request-headers");
  if (!fields.empty()) headers.emplace_back("Access-Control-Allow-Headers", fields);
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

bool has_json_body(const RequestHead& head) {
  if (head.content_length == 0) return true;
  const std::string type = lower(head.header("content-type"));
  const std::string media = type.substr(0, type.find(';'));
  return media.empty() || media == "application/json" || media == "application/json ";
}

bool is_valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::string new_request_id() {
  // Seeded once per thread: the device is slow, and an id need not be secret.
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }()};
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

}  // namespace outrider
