// The tokens of a template. One pass, no recursion, no regular expressions.
#include "models/text/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "models/text/jinja/text.h"
#include "models/text/tokenizer/unicode.h"
#include "runtime/base/error.h"

namespace outrider::jinja {

void fail_at_line(int line, std::string_view what) {
  throw Error(fmt::format("chat template line {}: {}", line, what));
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text_and_tag();
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view what) const { return rest().substr(0, what.size()) == what; }
  char char_at(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  // The white space control at `at`, a space when there is none.
  char sign_at(size_t at) const {
    const char c = char_at(at);
    return c == '-' || c == '+' ? c : ' ';
  }

  void push(TokenKind kind, std::string text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
  }

  void advance(size_t count) {
    const auto taken = rest().substr(0, count);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    at_ += taken.size();
    if (!taken.empty()) line_starting_ = taken.back() == '\n';
  }

  void skip_space() { advance(skip_space_from(at_) - at_); }

  size_t find_tag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      const char next = char_at(at + 1);
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return source_.size();
  }

  // Text before a tag: "-" takes all white space off its end, otherwise lstrip_blocks takes the
  // blanks between the line's start and a statement or comment.
  void push_text(size_t end, char sign, bool is_output) {
    const std::string_view text = std::string_view(source_).substr(at_, end - at_);
    size_t keep = text.size();
    if (sign == '-') {
      keep = stripped_range(text, Side::kRight, nullptr).end;
    } else if (sign != '+' && !is_output && end < source_.size()) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const bool at_line_start = line_begin > 0 || line_starting_;
      const auto blank = text.substr(line_begin);
      if (at_line_start && stripped_range(blank, Side::kLeft, nullptr).begin == blank.size()) {
        keep = line_begin;
      }
    }
    if (keep > 0) push(TokenKind::kText, std::string(text.substr(0, keep)));
    advance(text.size());
  }

  void lex_text_and_tag() {
    const size_t tag = find_tag();
    if (tag == source_.size()) return push_text(tag, ' ', false);
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    push_text(tag, sign, kind == '{');
    const size_t opening = sign == ' ' ? 2 : 3;
    if (kind == '#') {
      advance(opening);
      return skip_comment();
    }
    if (kind == '%' && lex_raw()) return;
    push(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kStatementBegin, {});
    advance(opening);
    lex_inside(kind == '{');
  }

  // After "%}" or "#}": trim_blocks drops one newline, "-" drops all white space, "+" nothing.
  void close_block(size_t length, char sign) {
    advance(length);
    if (sign == '-') skip_space();
    if (sign == ' ' && next_is("\n")) advance(1);
  }

  void skip_comment() {
    const int begin_line = line_;
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at_line(begin_line, "a comment is not closed");
    const char sign = end > at_ ? sign_at(end - 1) : ' ';
    advance(end - at_);
    close_block(2, sign);
  }

  // Position behind `{% word %}` at `at`, or npos; `sign` gets the one before the closing.
  size_t match_word_tag(size_t at, std::string_view word, char& sign) const {
    at += 2;
    if (sign_at(at) != ' ') ++at;
    at = skip_space_from(at);
    if (source_.compare(at, word.size(), word) != 0) return std::string::npos;
    at = skip_space_from(at + word.size());
    sign = sign_at(at);
    if (sign != ' ') ++at;
    if (source_.compare(at, 2, "%}") != 0) return std::string::npos;
    return at + 2;
  }

  size_t skip_space_from(size_t at) const {
    while (at < source_.size()) {
      size_t after = at;
      if (!is_space(next_code_point(source_, after))) break;
      at = after;
    }
    return std::min(at, source_.size());
  }

  bool lex_raw() {
    char sign = ' ';
    const size_t body = match_word_tag(at_, "raw", sign);
    if (body == std::string::npos || sign == '+') return false;
    const int begin_line = line_;
    advance(body - at_);
    if (sign == '-') skip_space();
    for (size_t end = source_.find("{%", at_); end != std::string::npos;
         end = source_.find("{%", end + 1)) {
      const size_t after = match_word_tag(end, "endraw", sign);
      if (after == std::string::npos) continue;
      push_text(end, sign_at(end + 2), false);
      close_block(after - at_, sign);
      return true;
    }
    fail_at_line(begin_line, "a raw block is not closed");
  }

  bool close_tag(bool is_output) {
    if (!brackets_.empty()) return false;
    const std::string_view closing = is_output ? "}}" : "%}";
    const char sign = next_is("-") ? '-' : next_is("+") && !is_output ? '+' : ' ';
    const size_t length = sign == ' ' ? 2 : 3;
    if (rest().substr(length - 2, 2) != closing) return false;
    push(is_output ? TokenKind::kOutputEnd : TokenKind::kStatementEnd, {});
    if (is_output) {
      advance(length);
      if (sign == '-') skip_space();
    } else {
      close_block(length, sign);
    }
    return true;
  }

  void lex_inside(bool is_output) {
    const int begin_line = line_;
    brackets_.clear();
    while (at_ < source_.size()) {
      if (close_tag(is_output)) return;
      size_t after = at_;
      const uint32_t c = next_code_point(source_, after);
      if (is_space(c)) {
        advance(after - at_);
      } else if (is_digit(source_[at_])) {
        lex_number();
      } else if (is_word(c)) {
        lex_name();
      } else if (c == '\'' || c == '"') {
        lex_string();
      } else {
        lex_operator();
      }
    }
    fail_at_line(begin_line, "a tag is not closed");
  }

  void lex_name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t after = end;
      if (!is_word(next_code_point(source_, after))) break;
      end = after;
    }
    push(TokenKind::kName, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  size_t digits_from(size_t at) const {  // digits with single underscores between
    size_t end = at;
    while (is_digit(char_at(end)) ||
           (char_at(end) == '_' && end > at && is_digit(char_at(end + 1)))) {
      ++end;
    }
    return end;
  }

  void lex_number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = digits_from(at_);
    bool is_real = false;
    if (!after_dot) {
      if (char_at(end) == '.' && is_digit(char_at(end + 1))) {
        end = digits_from(end + 1);
        is_real = true;
      }
      if (char_at(end) == 'e' || char_at(end) == 'E') {
        const size_t exponent = end + (sign_at(end + 1) == ' ' ? 1 : 2);
        if (is_digit(char_at(exponent))) {
          end = digits_from(exponent);
          is_real = true;
        }
      }
    }
    std::string digits = source_.substr(at_, end - at_);
    std::erase(digits, '_');
    if (is_real) {
      push(TokenKind::kFloat, {});
      tokens_.back().real = std::strtod(digits.c_str(), nullptr);
      return advance(end - at_);
    }
    push_integer(digits, end);
  }

  void push_integer(const std::string& digits, size_t end) {
    const int base = integer_base();
    if (base != 10) return push_based_integer(base);
    if (digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos) {
      fail_at_line(line_, "a number starts with 0");
    }
    if (digits.size() > 18) fail_at_line(line_, "a number is too large");
    push(TokenKind::kInteger, {});
    tokens_.back().integer = std::strtoll(digits.c_str(), nullptr, 10);
    advance(end - at_);
  }

  int integer_base() const {
    if (source_[at_] != '0') return 10;
    const int letter = char_at(at_ + 1) | 0x20;
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    return digit_value(char_at(at_ + 2)) < base ? base : 10;
  }

  static int digit_value(char c) {
    if (is_digit(c)) return c - '0';
    const int letter = (c | 0x20) - 'a';
    return letter >= 0 && letter < 6 ? 10 + letter : 99;
  }

  void push_based_integer(int base) {
    size_t end = at_ + 2;
    int64_t value = 0;
    while (end < source_.size() && (digit_value(source_[end]) < base || source_[end] == '_')) {
      if (source_[end] != '_') value = value * base + digit_value(source_[end]);
      if (value > INT64_MAX / 32) fail_at_line(line_, "a number is too large");
      ++end;
    }
    push(TokenKind::kInteger, {});
    tokens_.back().integer = value;
    advance(end - at_);
  }

  void lex_string() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at_line(line_, "a string is not closed");
    push(TokenKind::kString, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  std::string unescape(std::string_view raw) const {
    std::string out;
    for (size_t at = 0; at < raw.size();) {
      if (raw[at] != '\\') {
        out += raw[at++];
        continue;
      }
      at += 2;  // lex_string made sure that something follows the backslash
      unescape_one(raw, at, out);
    }
    return out;
  }

  // `at` is behind the letter of the escape.
  void unescape_one(std::string_view raw, size_t& at, std::string& out) const {
    const char letter = raw[at - 1];
    static constexpr std::string_view kLetters = "ntr\\'\"abfv\n";
    static constexpr std::array<std::string_view, 11> kMeaning = {
        "\n", "\t", "\r", "\\", "'", "\"", "\a", "\b", "\f", "\v", ""};
    const size_t simple = kLetters.find(letter);
    if (simple != std::string_view::npos) {
      out += kMeaning[simple];
    } else if (letter >= '0' && letter <= '7') {
      --at;
      append_number(raw, at, out, {8, 1, 3});
    } else if (letter == 'x') {
      append_number(raw, at, out, {16, 2, 2});
    } else if (letter == 'u') {
      append_number(raw, at, out, {16, 4, 4});
    } else if (letter == 'U') {
      append_number(raw, at, out, {16, 8, 8});
    } else if (letter == 'N') {
      fail_at_line(line_, "escapes by character name are not supported");
    } else {
      out += '\\';
      out += letter;
    }
  }

  struct Digits {
    int base;
    size_t least, most;
  };

  void append_number(std::string_view raw, size_t& at, std::string& out, Digits digits) const {
    uint64_t value = 0;
    size_t used = 0;
    for (; used < digits.most && at < raw.size() && digit_value(raw[at]) < digits.base; ++used) {
      value = value * static_cast<uint64_t>(digits.base) +
              static_cast<uint64_t>(digit_value(raw[at++]));
    }
    const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (used < digits.least || value > 0x10FFFF || surrogate) {
      fail_at_line(line_, "a string has a broken character escape");
    }
    unicode::append_utf8(out, static_cast<char32_t>(value));
  }

  void lex_operator() {
    static constexpr std::array<std::string_view, 25> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (const std::string_view op : kOperators) {
      if (!next_is(op)) continue;
      balance(op[0]);
      push(TokenKind::kOperator, std::string(op));
      return advance(op.size());
    }
    size_t after = at_;
    next_code_point(source_, after);
    fail_at_line(line_, fmt::format("unexpected character '{}'", source_.substr(at_, after - at_)));
  }

  void balance(char c) {
    if (c == '(') brackets_ += ')';
    if (c == '[') brackets_ += ']';
    if (c == '{') brackets_ += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (brackets_.empty() || brackets_.back() != c) {
      fail_at_line(line_, fmt::format("unexpected '{}'", c));
    }
    brackets_.pop_back();
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last thing taken ended a line
  std::string brackets_;       // closing brackets still expected inside the tag
  std::vector<Token> tokens_;
};

std::string with_unix_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (!unicode::is_valid_utf8(source)) throw Error("chat template: the text is not valid UTF-8");
  return Lexer(with_unix_newlines(source)).run();
}

}  // namespace outrider::jinja
