// The patterns of gpt2, llama3, qwen2, qwen3.5, o200k, tekken and Kimi as scanners. Each
// alternative of the pattern is one function, tried in the pattern's order.
#include "models/text/tokenizer/scanners.h"

#include <array>
#include <string>

#include "models/text/tokenizer/regex.h"
#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unicode_classes.h"

namespace outrider {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Words by their case: capitals, then small letters, or capitals alone.
constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kKimiPattern =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class CharClass : unsigned char { kLetter, kNumber, kSpace, kOther };

CharClass classify(char32_t c) {
  if (unicode::is_letter(c)) return CharClass::kLetter;
  if (unicode::is_number(c)) return CharClass::kNumber;
  return unicode::is_space(c) ? CharClass::kSpace : CharClass::kOther;
}

struct ScannedChar {
  CharClass kind = CharClass::kOther;
  size_t end = 0;  // where the next character starts
};

ScannedChar char_at(std::string_view text, size_t pos) {
  static const std::array<CharClass, 128> ascii = [] {
    std::array<CharClass, 128> table{};
    for (char32_t c = 0; c < 128; ++c) table[c] = classify(c);
    return table;
  }();
  const auto byte = static_cast<unsigned char>(text[pos]);
  if (byte < 128) return {ascii[byte], pos + 1};
  const unicode::CodePoint point = unicode::code_point_at(text, pos);
  return {classify(point.value), pos + point.num_bytes};
}

// End of the run of `kind` at pos, at most max_chars long.
size_t run_end(std::string_view text, size_t pos, CharClass kind, size_t max_chars = SIZE_MAX) {
  for (size_t n = 0; n < max_chars && pos < text.size(); ++n) {
    const ScannedChar c = char_at(text, pos);
    if (c.kind != kind) break;
    pos = c.end;
  }
  return pos;
}

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// 's 't 're 've 'm 'll 'd; returns pos when there is none. With ignore_case also the long s
// (U+017F), whose upper case is S.
size_t contraction_end(std::string_view text, size_t pos, bool ignore_case) {
  if (text[pos] != '\'') return pos;
  const auto letter = [&](size_t i) -> char {
    if (pos + i >= text.size()) return '\0';
    const char c = text[pos + i];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return pos + 3;
  if (first == 'l' && second == 'l') return pos + 3;
  if (ignore_case && text.substr(pos + 1, 2) == "\xC5\xBF") return pos + 3;
  return pos;
}

// \s+(?!\S)|\s+ : a run of white space, but its last character is left for what follows it, when
// there is more than one.
size_t space_run_end(std::string_view text, size_t pos) {
  const size_t end = run_end(text, pos, CharClass::kSpace);
  if (end == text.size()) return end;
  const size_t last = unicode::previous_start(text, end);
  return last > pos ? last : end;
}

size_t scan_gpt2(std::string_view text, size_t pos) {
  if (const size_t end = contraction_end(text, pos, false); end > pos) return end;
  ScannedChar first = char_at(text, pos);
  if (text[pos] == ' ' && first.end < text.size()) first = char_at(text, first.end);
  if (first.kind == CharClass::kSpace) return space_run_end(text, pos);
  return run_end(text, first.end, first.kind);
}

// \s*[\r\n]+ : up to the last line break of the run of white space; pos when it has none.
size_t line_break_end(std::string_view text, size_t pos) {
  size_t end = run_end(text, pos, CharClass::kSpace);
  while (end > pos && !is_newline(text[end - 1])) --end;
  return end;
}

// What of the pattern differs between the families.
struct Style {
  size_t max_digits = 3;
  bool joins_marks = false;  // marks belong to words (qwen3.5)
  bool has_contractions = true;
  bool takes_slashes = false;  // after other characters come line breaks and slashes
  bool parts_han = false;      // runs of Han are words of their own (Kimi)
};

// \p{L}+ or [^\s\p{L}\p{N}]+; where words take marks, these are letters.
size_t word_run_end(std::string_view text, size_t pos, CharClass kind, const Style& style) {
  if (!style.joins_marks) return run_end(text, pos, kind);
  while (pos < text.size()) {
    const ScannedChar c = char_at(text, pos);
    const bool is_mark =
        c.kind == CharClass::kOther && unicode::is_mark(unicode::code_point_at(text, pos).value);
    if ((is_mark ? CharClass::kLetter : c.kind) != kind) break;
    pos = c.end;
  }
  return pos;
}

// ' '?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
size_t scan_rest(std::string_view text, size_t pos, const Style& style) {
  const size_t start = text[pos] == ' ' ? pos + 1 : pos;
  size_t end = word_run_end(text, start, CharClass::kOther, style);
  if (end > start) {
    const auto is_tail = [&](char c) { return is_newline(c) || (style.takes_slashes && c == '/'); };
    while (end < text.size() && is_tail(text[end])) ++end;
    return end;
  }
  end = line_break_end(text, pos);
  return end > pos ? end : space_run_end(text, pos);
}

template <Style kStyle>
size_t scan_llama3(std::string_view text, size_t pos) {
  if (const size_t end = contraction_end(text, pos, true); end > pos) return end;
  const ScannedChar first = char_at(text, pos);
  if (first.kind == CharClass::kNumber)
    return run_end(text, pos, CharClass::kNumber, kStyle.max_digits);
  // [^\r\n\p{L}\p{N}]?\p{L}+, with the first character and without
  if (first.kind != CharClass::kLetter && !is_newline(text[pos])) {
    const size_t end = word_run_end(text, first.end, CharClass::kLetter, kStyle);
    if (end > first.end) return end;
  }
  const size_t end = word_run_end(text, pos, CharClass::kLetter, kStyle);
  return end > pos ? end : scan_rest(text, pos, kStyle);
}

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ from pos; pos when it does not match.
// `capitals_end`: where the first class's run ends.
size_t cased_word_end(std::string_view text, size_t pos, const Style& style, size_t& capitals_end) {
  using unicode::LetterCase;
  size_t end = pos, last_either_end = pos;
  LetterCase kind = LetterCase::kNone;
  const auto next = [&]() -> size_t {
    if (end == text.size()) return end;
    const unicode::CodePoint point = unicode::code_point_at(text, end);
    kind = style.parts_han && unicode::is_han(point.value) ? LetterCase::kNone
                                                           : unicode::letter_case(point.value);
    return end + point.num_bytes;
  };
  for (size_t after = next(); after > end; after = next()) {
    if (kind != LetterCase::kUpper && kind != LetterCase::kEither) break;
    end = after;
    if (kind == LetterCase::kEither) last_either_end = end;
  }
  capitals_end = end;
  const size_t lower_begin = end;
  for (size_t after = next(); after > end; after = next()) {
    if (kind != LetterCase::kLower && kind != LetterCase::kEither) break;
    end = after;
  }
  // Without small letters the first class gives back what may belong to either.
  return end > lower_begin ? end : last_either_end;
}

template <Style kStyle>
size_t scan_cased(std::string_view text, size_t pos) {
  const unicode::CodePoint point = unicode::code_point_at(text, pos);
  const ScannedChar first = char_at(text, pos);
  if (kStyle.parts_han && unicode::is_han(point.value)) {
    size_t end = first.end;
    while (end < text.size() && unicode::is_han(unicode::code_point_at(text, end).value))
      end += unicode::code_point_at(text, end).num_bytes;
    return end;
  }
  const auto with_contraction = [&](size_t end) {
    if (!kStyle.has_contractions || end == text.size()) return end;
    return contraction_end(text, end, true);
  };
  const bool may_lead = first.kind != CharClass::kLetter && first.kind != CharClass::kNumber &&
                        !is_newline(text[pos]);
  size_t led_capitals = first.end, capitals = pos;
  if (may_lead) {
    const size_t end = cased_word_end(text, first.end, kStyle, led_capitals);
    if (end > first.end) return with_contraction(end);
  }
  if (const size_t end = cased_word_end(text, pos, kStyle, capitals); end > pos)
    return with_contraction(end);
  if (may_lead && led_capitals > first.end) return with_contraction(led_capitals);
  if (capitals > pos) return with_contraction(capitals);
  if (first.kind == CharClass::kNumber)
    return run_end(text, pos, CharClass::kNumber, kStyle.max_digits);
  return scan_rest(text, pos, kStyle);
}

}  // namespace

Scanner find_scanner(std::string_view pattern) {
  static const struct {
    std::string_view pattern;
    Scanner scan;
  } kScanners[] = {
      {kGpt2Pattern, scan_gpt2},
      {kLlama3Pattern, scan_llama3<Style{}>},
      {kQwen2Pattern, scan_llama3<Style{.max_digits = 1}>},
      {kQwen35Pattern, scan_llama3<Style{.max_digits = 1, .joins_marks = true}>},
      {kO200kPattern, scan_cased<Style{.takes_slashes = true}>},
      {kTekkenPattern,
       scan_cased<Style{.max_digits = 1, .has_contractions = false, .takes_slashes = true}>},
      {kKimiPattern, scan_cased<Style{.parts_han = true}>}};
  for (const auto& known : kScanners) {
    if (pattern == known.pattern) return known.scan;
  }
  return nullptr;
}

}  // namespace outrider
