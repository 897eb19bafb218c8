// See access.h and request_id.h.
#include "http/wire/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "http/wire/request_id.h"

namespace outrider {
namespace {

constexpr size_t kMaxKeyBytes = 512;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view sent_key(const RequestHead& head) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = head.header("authorization");
  if (lower(authorization.substr(0, kBearer.size())) == kBearer) {
    return authorization.substr(kBearer.size());
  }
  return head.header("x-api-key");
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

std::optional<std::string> allowed_origin(const RequestHead& head,
                                          const std::vector<std::string>& allowed_origins) {
  const std::string origin(head.header("origin"));
  if (origin.empty()) return std::nullopt;
  for (const std::string& allowed : allowed_origins) {
    if (allowed == "*" || allowed == origin) return allowed;
  }
  return std::nullopt;
}

bool is_foreign_origin(const RequestHead& head, const std::vector<std::string>& allowed_origins) {
  const std::string origin = lower(head.header("origin"));
  if (origin.empty() || allowed_origin(head, allowed_origins)) return false;
  const std::string host = lower(head.header("host"));
  return origin != "http://" + host && origin != "https://" + host;
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
