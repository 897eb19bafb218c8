// UTF-8 for tokenizers and templates; normalization and clusters for the tokenizer, over utf8proc's
// tables. Pure functions, any thread.
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
std::string utf8(char32_t value);

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

enum class Form { kNfc, kNfd, kNfkc, kNfkd };

// Normalization in O(n log n): runs of combining marks are sorted, not bubbled. As Hugging Face's,
// whose tables are of Unicode 9.
std::string normalize(std::string_view valid_text, Form form);

// The end of the extended grapheme cluster that starts at pos.
size_t cluster_end(std::string_view valid_text, size_t pos);

// True where normalization never joins `c` with what stands before it, so a text may be normalized
// in two halves there. May say false for such a place, never true for another.
bool is_normalization_boundary(char32_t c);

}  // namespace outrider::unicode
