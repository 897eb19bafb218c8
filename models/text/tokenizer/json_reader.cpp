// The JSON reading helpers of the tokenizer: limits first, then the library, then typed access.
// One thread, at load.
#include <nlohmann/json.hpp>

#include "models/text/tokenizer/json.h"
#include "runtime/base/error.h"
#include "runtime/base/files/json_depth.h"

namespace outrider::json_reader {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxDepth = 32;

}  // namespace

void Place::fail(const std::string& what) const { throw Error(path + ": " + what); }

std::string excerpt(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size() && out.size() < 60;) {
    const auto unit = unicode::utf8_unit_at(text, pos);
    const bool is_printable = unit.kind == unicode::Utf8Unit::Kind::kCharacter &&
                              (unit.length > 1 || (text[pos] >= 0x20 && text[pos] != 0x7F));
    out += is_printable ? text.substr(pos, unit.length) : std::string_view("?");
    pos += unit.length;
  }
  return out;
}

Json parse(std::string_view text, const Place& place) {
  if (text.size() > kMaxBytes) place.fail("larger than 64 MiB");
  if (json_nests_deeper_than(text, kMaxDepth)) place.fail("nested deeper than 32 levels");
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    place.fail("not valid JSON (" + excerpt(error.what()) + ")");
  }
}

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string string_at(const Json& object, const char* key, const Place& place) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_string()) place.fail(std::string(key) + " must be a string");
  return value->get<std::string>();
}

std::string string_or(const Json& object,
                      const char* key,
                      const std::string& fallback,
                      const Place& place) {
  return find(object, key) == nullptr ? fallback : string_at(object, key, place);
}

bool bool_or(const Json& object, const char* key, bool fallback, const Place& place) {
  const Json* value = find(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) place.fail(std::string(key) + " must be true or false");
  return value->get<bool>();
}

int32_t token_id_of(const Json& value, const Place& place) {
  // is_number_unsigned also excludes -1, which get<unsigned>() would wrap silently.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{kMaxTokenId}) {
    place.fail("a token id must be a whole number from 0 to " + std::to_string(kMaxTokenId));
  }
  return static_cast<int32_t>(value.get<uint64_t>());
}

}  // namespace outrider::json_reader
