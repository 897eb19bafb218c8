// Cuts a template into tokens the way Jinja does with trim_blocks and lstrip_blocks on: text
// outside tags has its white space control already applied. Called by the parser only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider::jinja {

enum class TokenKind : uint8_t {
  kText,            // text outside tags
  kOutputBegin,     // {{
  kOutputEnd,       // }}
  kStatementBegin,  // {%
  kStatementEnd,    // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // name, operator, text, or the string with its escapes resolved
  int64_t integer = 0;
  double real = 0;
};

// The last token is kEnd. Throws outrider::Error naming the line.
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void fail_at_line(int line, std::string_view what);

}  // namespace outrider::jinja
