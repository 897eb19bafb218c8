// UTF-8 walking, clusters and normalization for the tokenizer; called on every encode, any thread.
#include "models/text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "models/text/tokenizer/unicode_classes.h"
#include "runtime/base/error.h"

namespace outrider::unicode {
namespace {

// Bytes a sequence has that starts with `lead`, 0 when no character does.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// The second byte has a narrower range after some leads (overlong forms, surrogates, > U+10FFFF).
bool is_second_byte(unsigned char lead, unsigned char byte) {
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  return byte >= low && byte <= high;
}

using Buffer = std::vector<utf8proc_int32_t>;

void append_decomposed(Buffer& out, char32_t c, utf8proc_option_t options) {
  if (is_newer_than_normalizer(c)) {
    out.push_back(static_cast<utf8proc_int32_t>(c));
    return;
  }
  int last_boundclass = 0;
  utf8proc_int32_t parts[32];
  const utf8proc_ssize_t num_parts = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(c), parts, 32, options, &last_boundclass);
  if (num_parts < 0 || num_parts > 32) {
    out.push_back(static_cast<utf8proc_int32_t>(c));
    return;
  }
  out.insert(out.end(), parts, parts + num_parts);
}

bool is_newer(utf8proc_int32_t c) { return is_newer_than_normalizer(static_cast<char32_t>(c)); }

int combining_class(utf8proc_int32_t c) {
  return is_newer(c) ? 0 : utf8proc_get_property(c)->combining_class;
}

// Canonical ordering: every run of marks with a nonzero class, stably by class.
void order_marks(Buffer& buffer) {
  size_t i = 0;
  while (i < buffer.size()) {
    if (combining_class(buffer[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < buffer.size() && combining_class(buffer[end]) != 0) ++end;
    std::stable_sort(buffer.begin() + static_cast<ptrdiff_t>(i),
                     buffer.begin() + static_cast<ptrdiff_t>(end),
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

// Nothing composes over the place before buffer[i]: before U+11A7, which utf8proc 2.8 takes for a
// Hangul final consonant and swallows, and on both sides of a character that normalization does not
// know but utf8proc does.
bool is_composition_boundary(const Buffer& buffer, size_t i) {
  constexpr utf8proc_int32_t kBeforeFinalConsonants = 0x11A7;
  return buffer[i] == kBeforeFinalConsonants || is_newer(buffer[i]) || is_newer(buffer[i - 1]);
}

// Canonical composition of an ordered, decomposed text.
void compose_in_place(Buffer& buffer) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  size_t kept = 0;
  for (size_t begin = 0; begin < buffer.size();) {
    size_t end = begin + 1;
    while (end < buffer.size() && !is_composition_boundary(buffer, end)) ++end;
    const bool is_alone = end == begin + 1;
    const utf8proc_ssize_t length =
        is_alone ? 1
                 : utf8proc_normalize_utf32(
                       buffer.data() + begin, static_cast<utf8proc_ssize_t>(end - begin), options);
    OUTRIDER_CHECK(length >= 0);
    std::copy_n(buffer.begin() + static_cast<ptrdiff_t>(begin),
                length,
                buffer.begin() + static_cast<ptrdiff_t>(kept));
    kept += static_cast<size_t>(length);
    begin = end;
  }
  buffer.resize(kept);
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = std::min(std::max<size_t>(sequence_length(lead), 1), text.size() - pos);
  if (length < 2) return {0xFFFD, 1};
  char32_t value = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) value = (value << 6) | (byte(i) & 0x3Fu);
  return {value, length};
}

size_t previous_start(std::string_view text, size_t end) {
  size_t pos = end - 1;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}

void append_utf8(std::string& out, char32_t value) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(value), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

std::string utf8(char32_t value) {
  std::string out;
  append_utf8(out, value);
  return out;
}

Utf8Unit utf8_unit_at(std::string_view text, size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  const size_t length = sequence_length(lead);
  if (length == 0) return {Utf8Unit::Kind::kInvalid, 1};
  for (size_t i = 1; i < length; ++i) {
    if (pos + i == text.size()) return {Utf8Unit::Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(text[pos + i]);
    const bool fits = i == 1 ? is_second_byte(lead, byte) : (byte & 0xC0) == 0x80;
    if (!fits) return {Utf8Unit::Kind::kInvalid, i};
  }
  return {Utf8Unit::Kind::kCharacter, length};
}

bool is_valid_utf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Unit unit = utf8_unit_at(text, pos);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return false;
    pos += unit.length;
  }
  return true;
}

std::string normalize(std::string_view valid_text, Form form) {
  const bool compatibility = form == Form::kNfkc || form == Form::kNfkd;
  const bool compose = form == Form::kNfc || form == Form::kNfkc;
  const auto decompose_options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0));
  Buffer buffer;
  buffer.reserve(valid_text.size());
  for (size_t pos = 0; pos < valid_text.size();) {
    const CodePoint point = code_point_at(valid_text, pos);
    append_decomposed(buffer, point.value, decompose_options);
    pos += point.num_bytes;
  }
  order_marks(buffer);
  if (compose) compose_in_place(buffer);
  std::string out;
  out.reserve(valid_text.size());
  for (const utf8proc_int32_t c : buffer) append_utf8(out, static_cast<char32_t>(c));
  return out;
}

size_t cluster_end(std::string_view valid_text, size_t pos) {
  const auto known_at = [&](size_t i) {
    const CodePoint point = code_point_at(valid_text, i);
    return is_newer_extender(point.value) ? CodePoint{0x301, point.num_bytes} : point;
  };
  CodePoint point = known_at(pos);
  utf8proc_int32_t state = 0;
  for (size_t end = pos + point.num_bytes; end < valid_text.size();) {
    const CodePoint next = known_at(end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(point.value),
                                         static_cast<utf8proc_int32_t>(next.value),
                                         &state)) {
      return end;
    }
    point = next;
    end += next.num_bytes;
  }
  return valid_text.size();
}

bool is_normalization_boundary(char32_t c) {
  if (c < 0x300) return true;
  if (c == 0x3099 || c == 0x309A || c == 0x302A) return false;
  const bool punctuation_or_symbol = c >= 0x2010 && c <= 0x20CF;
  const bool han_or_kana = c >= 0x3030 && c <= 0x9FFF && !(c >= 0x3131 && c <= 0x318E);
  const bool emoji = c >= 0x1F300 && c <= 0x1FAFF;
  return punctuation_or_symbol || han_or_kana || emoji;
}

}  // namespace outrider::unicode
