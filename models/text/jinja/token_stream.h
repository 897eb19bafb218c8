// The parser's view of the tokens: looking, taking, expecting, and the table of variable names.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/text/jinja/ast.h"
#include "models/text/jinja/lexer.h"

namespace outrider::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }

  Token take();
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view op) const;
  bool at_name(std::string_view name) const;
  bool take_operator(std::string_view op);
  bool take_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_any_name();
  void expect(TokenKind kind);

  size_t position() const { return at_; }
  // Whether `name` stands as a variable among the tokens from `begin` to here.
  bool mentions_since(size_t begin, std::string_view name) const;

  int intern(const std::string& name);
  std::vector<std::string> take_names() { return std::move(names_); }

  [[noreturn]] void fail(std::string_view what) const;

 private:
  std::vector<Token> tokens_;  // ends with kEnd
  size_t at_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> ids_;
};

std::string describe(const Token& token);

}  // namespace outrider::jinja
