// Reading and walking the double array (the unit layout of the Darts-clone library). Any thread.
#include "models/text/tokenizer/charsmap.h"

#include "models/text/tokenizer/unicode.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  const size_t num_bytes = bytes.size() < 4 ? 0 : little_endian(bytes);
  if (num_bytes < 4 || num_bytes % 4 != 0 || num_bytes > bytes.size() - 4)
    throw Error("the precompiled_charsmap is cut off or holds something else");
  for (size_t pos = 4; pos < 4 + num_bytes; pos += 4)
    units_.push_back(little_endian(bytes.substr(pos, 4)));
  texts_ = bytes.substr(4 + num_bytes);
  if (!unicode::is_valid_utf8(texts_))
    throw Error("the texts of the precompiled_charsmap are not UTF-8");
}

std::optional<std::string_view> Charsmap::replacement_of(std::string_view text) const {
  uint32_t node = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (node >= units_.size()) return std::nullopt;
    if (!has_value(unit)) continue;
    const uint32_t begin = value_of(units_[node]);
    if (begin > texts_.size()) return std::nullopt;
    const size_t end = texts_.find('\0', begin);
    const auto found = std::string_view(texts_).substr(begin, end - begin);
    // A broken map may point into a character.
    if (!unicode::is_valid_utf8(found)) return std::nullopt;
    return found;
  }
  return std::nullopt;
}

}  // namespace outrider
