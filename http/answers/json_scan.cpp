// See json_scan.h.
#include "http/answers/json_scan.h"

#include <nlohmann/json.hpp>

namespace outrider {

size_t JsonScan::take(std::string_view piece) {
  size_t i = 0;
  for (; i < piece.size() && !done_; ++i) {
    const char c = piece[i];
    if (in_string_) {
      in_string_ = is_escaped_ || c != '"';
      is_escaped_ = !is_escaped_ && c == '\\';
      done_ = !in_string_ && depth_ == 0;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (depth_ > 0) {
      if (c == '}' || c == ']') done_ = --depth_ == 0;
    } else if (c == '}' || c == ']' || c == ',' || c == ' ' || c == '\n') {
      done_ = true;
      return i;  // it belongs to what is around the number or word
    }
  }
  return i;
}

std::optional<std::string_view> whole_json_value(std::string_view text) {
  JsonScan scan;
  const size_t length = scan.take(text);
  if (!scan.done()) return std::nullopt;
  return text.substr(0, length);
}

std::optional<std::string> json_string(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  const auto value = nlohmann::json::parse(json, nullptr, false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace outrider
