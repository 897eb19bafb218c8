// The patterns of gpt2, llama3 and qwen2 as scanners. Each alternative of the pattern is one
// function, tried in the pattern's order.
#include "models/text/tokenizer/scanners.h"

#include <array>
#include <string>

#include "models/text/tokenizer/regex.h"
#include "models/text/tokenizer/unicode.h"

namespace outrider {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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

size_t scan_llama3(std::string_view text, size_t pos, size_t max_digits) {
  if (const size_t end = contraction_end(text, pos, true); end > pos) return end;
  const ScannedChar first = char_at(text, pos);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.kind == CharClass::kLetter) return run_end(text, first.end, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) return run_end(text, pos, CharClass::kNumber, max_digits);
  if (!is_newline(text[pos])) {
    const size_t end = run_end(text, first.end, CharClass::kLetter);
    if (end > first.end) return end;
  }
  // ' '?[^\s\p{L}\p{N}]+[\r\n]*
  const size_t start = text[pos] == ' ' ? first.end : pos;
  size_t end = run_end(text, start, CharClass::kOther);
  if (end > start) {
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  end = line_break_end(text, pos);
  return end > pos ? end : space_run_end(text, pos);
}

}  // namespace

Scanner find_scanner(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return scan_gpt2;
  if (pattern == kLlama3Pattern) {
    return [](std::string_view text, size_t pos) { return scan_llama3(text, pos, 3); };
  }
  if (pattern == kQwen2Pattern) {
    return [](std::string_view text, size_t pos) { return scan_llama3(text, pos, 1); };
  }
  return nullptr;
}

}  // namespace outrider
