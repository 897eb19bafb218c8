// UTF-8 and Unicode facts the tokenizer needs, over utf8proc's tables. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace outrider::unicode {

struct CodePoint {
  char32_t value = 0;
  size_t num_bytes = 0;  // of its UTF-8 form
};

// The code point at text[pos]; the text must be valid UTF-8 and pos the start of a character.
CodePoint code_point_at(std::string_view text, size_t pos);

// The start of the character that ends at `end` (> 0) in valid UTF-8.
size_t previous_start(std::string_view text, size_t end);

void append_utf8(std::string& out, char32_t value);

// What stands at text[pos] of any bytes: a whole character, the beginning of one cut off by the end
// of the text, or bytes that can never become one (then `length` is the maximal invalid prefix,
// that one U+FFFD stands for, as the Unicode standard recommends and Rust and Python do).
struct Utf8Unit {
  enum class Kind { kCharacter, kIncomplete, kInvalid };
  Kind kind = Kind::kInvalid;
  size_t length = 0;
};
Utf8Unit utf8_unit_at(std::string_view text, size_t pos);

bool is_valid_utf8(std::string_view text);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// General category L*, N*; the White_Space property; Rust's and Oniguruma's \w.
bool is_letter(char32_t c);
bool is_number(char32_t c);
bool is_space(char32_t c);
bool is_word(char32_t c);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };

// Normalization in O(n log n): runs of combining marks are sorted, not bubbled.
std::string normalize(std::string_view valid_text, Form form);

// True where normalization never joins `c` with what stands before it, so a text may be normalized
// in two halves there. May say false for such a place, never true for another.
bool is_normalization_boundary(char32_t c);

// Full per-character lower case mapping, without context rules (Rust char::to_lowercase).
void append_lowercase(std::string& out, char32_t c);

}  // namespace outrider::unicode
