// UTF-8 walking, categories and normalization for the tokenizer; called on every encode, any
// thread.
#include "models/text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/base/error.h"

namespace outrider::unicode {
namespace {

struct Range {
  char32_t first = 0;
  char32_t last = 0;
};

// Letters and numbers of Unicode 15.1 and 16, which the tables of Hugging Face know and those of
// utf8proc 2.8 (Unicode 15.0) do not; sorted.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49},
                                 {0x116D0, 0x116E3},
                                 {0x11BF0, 0x11BF9},
                                 {0x16130, 0x16139},
                                 {0x16D70, 0x16D79},
                                 {0x1CCF0, 0x1CCF9},
                                 {0x1E5F1, 0x1E5FA}};

template <size_t kCount>
bool is_in(const Range (&ranges)[kCount], char32_t c) {
  const Range* found =
      std::upper_bound(std::begin(ranges), std::end(ranges), c, [](char32_t v, const Range& r) {
        return v <= r.last;
      });
  return found != std::end(ranges) && found->first <= c;
}

utf8proc_category_t category_of(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Symbols that are alphabetic though their category is So: circled and squared Latin letters.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

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

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

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

// Canonical composition of an ordered, decomposed text. It is cut before U+11A7, which utf8proc 2.8
// takes for a Hangul final consonant and swallows; it never composes with what stands before it.
void compose_in_place(Buffer& buffer) {
  constexpr utf8proc_int32_t kBeforeFinalConsonants = 0x11A7;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  size_t kept = 0;
  for (size_t begin = 0; begin < buffer.size();) {
    const auto next = std::find(
        buffer.begin() + static_cast<ptrdiff_t>(begin) + 1, buffer.end(), kBeforeFinalConsonants);
    const auto end = static_cast<size_t>(next - buffer.begin());
    const utf8proc_ssize_t length = utf8proc_normalize_utf32(
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

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const auto category = category_of(c);
  if (category == UTF8PROC_CATEGORY_CN) return is_in(kNewLetters, c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto category = category_of(c);
  if (category == UTF8PROC_CATEGORY_CN) return is_in(kNewNumbers, c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (is_letter(c) || c == '_') return true;
  const auto category = category_of(c);
  return (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) ||
         category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || is_alphabetic_symbol(c);
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

bool is_normalization_boundary(char32_t c) {
  if (c < 0x300) return true;
  if (c == 0x3099 || c == 0x309A || c == 0x302A) return false;
  const bool punctuation_or_symbol = c >= 0x2010 && c <= 0x20CF;
  const bool han_or_kana = c >= 0x3030 && c <= 0x9FFF && !(c >= 0x3131 && c <= 0x318E);
  const bool emoji = c >= 0x1F300 && c <= 0x1FAFF;
  return punctuation_or_symbol || han_or_kana || emoji;
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the only character whose lower case is two
    out += "i\xCC\x87";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace outrider::unicode
