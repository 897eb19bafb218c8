// See checked_json.h.
#include "models/checkpoint/checked_json.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {

std::string printable(const std::string& name) {
  std::string text = name.substr(0, 200);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text;
}

void check_json(const std::string& text, const JsonLimits& limits, const std::string& origin) {
  const std::string fault = json_fault(text, limits);
  if (!fault.empty()) throw Error(fmt::format("{}: {}", origin, fault));
}

std::string read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  const std::string text = read_regular_file(path, limits.max_bytes);
  check_json(text, limits, path.string());
  return text;
}

}  // namespace outrider
