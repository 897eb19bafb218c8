// Which characters are letters, marks, digits, ... to the parts of Hugging Face's tokenizers. Those
// parts know different versions of Unicode: patterns (Oniguruma) 16, Rust 17, normalizers 9 and 8.
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider::unicode {

// A character of the same category and UTF-8 length that older libraries know: itself, or for one
// of Unicode 15 and 16 another.
char32_t known_character(char32_t c);

// As patterns know them: general category L*, N*, M*; White_Space; \w; the script Han.
bool is_letter(char32_t c);
bool is_number(char32_t c);
bool is_mark(char32_t c);
bool is_space(char32_t c);
bool is_word(char32_t c);
bool is_han(char32_t c);

// Where the white space that ends at `end` begins, and where that from `pos` on ends.
size_t spaces_begin_before(std::string_view valid_text, size_t end);
size_t spaces_end_after(std::string_view valid_text, size_t pos);

// Of letters and marks: [\p{Lu}\p{Lt}], [\p{Ll}], and [\p{Lm}\p{Lo}\p{M}], which have no case.
enum class LetterCase : unsigned char { kNone, kUpper, kLower, kEither };
LetterCase letter_case(char32_t c);

// As the pre-tokenizers Digits and Punctuation know them.
bool is_numeric(char32_t c);
bool is_punctuation(char32_t c);

// As the normalizers know them: what StripAccents drops, what BertNormalizer drops as an accent,
// and as a control character (Cc, Cf, Cs, Co).
bool is_combining_mark(char32_t c);
bool is_nonspacing_mark(char32_t c);
bool is_control(char32_t c);

// True for characters of a Unicode version that normalization does not know: they have no
// decomposition and no combining class.
bool is_newer_than_normalizer(char32_t c);

// True for characters that extend a cluster, as U+0301 does, and that utf8proc does not know.
bool is_newer_extender(char32_t c);

// Full per-character lower case mapping, without context rules (Rust char::to_lowercase).
void append_lowercase(std::string& out, char32_t c);

}  // namespace outrider::unicode
