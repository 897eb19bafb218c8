// Expressions of the template language, with Jinja's precedence:
// ternary < or < and < not < comparisons, in < + - < ~ < * / // % < ** < unary < postfix, filter,
// is.
#pragma once

#include "models/text/jinja/token_stream.h"

namespace outrider::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  enum class Ternary { kAllowed, kNotAllowed };

  // Throughout: throws outrider::Error naming the line.
  Expr parse_expression(Ternary ternary = Ternary::kAllowed);
  // One expression, or several with commas: a tuple. `end_name`: a name that also ends it ("in").
  Expr parse_tuple(Ternary ternary = Ternary::kAllowed, std::string_view end_name = {});
  Target parse_target(std::string_view end_name = {}, bool attribute_allowed = false);
  CallArguments parse_arguments();       // from "(" to ")"
  std::vector<Postfix> parse_filters();  // "|a|b(1)"; none when no bar follows
  Postfix parse_filter();                // the part behind the bar

  int depth = 0;  // nesting so far; shared with the statement parser

 private:
  Expr parse_or();
  Expr parse_and();
  Expr parse_not();
  Expr parse_compare();
  Expr parse_sum();
  Expr parse_concatenation();
  Expr parse_product();
  Expr parse_power();
  Expr parse_unary(bool with_filters);
  Expr parse_primary();
  Expr parse_parenthesis();
  Expr parse_items(ExprKind kind, std::string_view closing);  // of a list or dict
  Target parse_single_target(bool attribute_allowed);
  void parse_postfixes(Expr& base);
  void parse_filters_and_tests(Expr& base);
  Postfix parse_subscript();
  Postfix parse_test();
  Postfix parse_call();
  bool at_tuple_end(std::string_view end_name) const;
  bool at_test_argument() const;

  TokenStream& tokens_;
};

// One level of nesting; throws outrider::Error beyond kMaxNesting.
class NestingGuard {
 public:
  NestingGuard(int& depth, const TokenStream& tokens);
  ~NestingGuard() { --depth_; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;

 private:
  int& depth_;
};

}  // namespace outrider::jinja
