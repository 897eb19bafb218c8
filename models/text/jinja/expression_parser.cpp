// Recursive descent over one expression. Left-associative chains become flat nodes.
#include "models/text/jinja/expression_parser.h"

#include "models/text/jinja/call.h"

namespace outrider::jinja {

NestingGuard::NestingGuard(int& depth, const TokenStream& tokens) : depth_(depth) {
  if (depth_ >= kMaxNesting) {
    tokens.fail("nesting is deeper than " + std::to_string(kMaxNesting) + " levels");
  }
  ++depth_;
}

namespace {

// first op second op third ..., flat; just `first` when no operator followed.
struct Chain {
  explicit Chain(Expr first_operand) : first(std::move(first_operand)) {}
  void add(Operator op, Expr operand) {
    if (operands.empty()) operands.push_back(std::move(first));
    operators.push_back(op);
    operands.push_back(std::move(operand));
  }
  Expr finish(ExprKind kind) {
    if (operands.empty()) return std::move(first);
    return {.kind = kind, .operands = std::move(operands), .operators = std::move(operators)};
  }
  Expr first;
  std::vector<Expr> operands;
  std::vector<Operator> operators;
};

// What stands behind `base`, which becomes a postfix node unless it is one.
std::vector<Postfix>& postfixes_of(Expr& base) {
  if (base.kind != ExprKind::kPostfix) {
    Expr expr{.kind = ExprKind::kPostfix};
    expr.operands.push_back(std::move(base));
    base = std::move(expr);
  }
  return base.postfixes;
}

struct NamedOperator {
  std::string_view name;
  Operator op;
};

template <size_t kSize>
const NamedOperator* find_operator(const Token& token, const NamedOperator (&table)[kSize]) {
  return token.kind == TokenKind::kOperator ? find_named(table, token.text) : nullptr;
}

constexpr NamedOperator kComparisons[] = {{"==", Operator::kEqual},
                                          {"!=", Operator::kNotEqual},
                                          {"<", Operator::kLess},
                                          {"<=", Operator::kLessEqual},
                                          {">", Operator::kGreater},
                                          {">=", Operator::kGreaterEqual}};
constexpr NamedOperator kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr NamedOperator kProducts[] = {{"*", Operator::kMultiply},
                                       {"/", Operator::kDivide},
                                       {"//", Operator::kFloorDivide},
                                       {"%", Operator::kModulo}};

bool is_constant_name(std::string_view name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" ||
         name == "None";
}

}  // namespace

Expr ExpressionParser::parse_expression(Ternary ternary) {
  const NestingGuard guard(depth, tokens_);
  Expr expr = parse_or();
  if (ternary == Ternary::kNotAllowed) return expr;
  if (!tokens_.take_name("if")) return expr;
  Expr conditional{.kind = ExprKind::kConditional};
  conditional.operands.push_back(parse_or());
  conditional.operands.push_back(std::move(expr));
  if (tokens_.take_name("else")) conditional.operands.push_back(parse_expression());
  // Jinja would wrap round after round here, nesting without brackets; nobody writes it.
  if (tokens_.at_name("if")) tokens_.fail("conditional expressions in a row need brackets");
  return conditional;
}

Expr ExpressionParser::parse_or() {
  Chain chain(parse_and());
  while (tokens_.take_name("or")) chain.add(Operator::kAdd, parse_and());
  return chain.finish(ExprKind::kOr);
}

Expr ExpressionParser::parse_and() {
  Chain chain(parse_not());
  while (tokens_.take_name("and")) chain.add(Operator::kAdd, parse_not());
  return chain.finish(ExprKind::kAnd);
}

Expr ExpressionParser::parse_not() {
  if (!tokens_.at_name("not")) return parse_compare();
  const NestingGuard guard(depth, tokens_);
  tokens_.take();
  Expr expr{.kind = ExprKind::kNot};
  expr.operands.push_back(parse_not());
  return expr;
}

Expr ExpressionParser::parse_compare() {
  Chain chain(parse_sum());
  while (true) {
    if (const NamedOperator* found = find_operator(tokens_.current(), kComparisons)) {
      tokens_.take();
      chain.add(found->op, parse_sum());
    } else if (tokens_.take_name("in")) {
      chain.add(Operator::kIn, parse_sum());
    } else if (tokens_.at_name("not") && tokens_.next().kind == TokenKind::kName &&
               tokens_.next().text == "in") {
      tokens_.take();
      tokens_.take();
      chain.add(Operator::kNotIn, parse_sum());
    } else {
      return chain.finish(ExprKind::kCompare);
    }
  }
}

Expr ExpressionParser::parse_sum() {
  Chain chain(parse_concatenation());
  while (const NamedOperator* found = find_operator(tokens_.current(), kSums)) {
    tokens_.take();
    chain.add(found->op, parse_concatenation());
  }
  return chain.finish(ExprKind::kArithmetic);
}

Expr ExpressionParser::parse_concatenation() {
  Chain chain(parse_product());
  while (tokens_.take_operator("~")) chain.add(Operator::kAdd, parse_product());
  return chain.finish(ExprKind::kConcatenate);
}

Expr ExpressionParser::parse_product() {
  Chain chain(parse_power());
  while (const NamedOperator* found = find_operator(tokens_.current(), kProducts)) {
    tokens_.take();
    chain.add(found->op, parse_power());
  }
  return chain.finish(ExprKind::kArithmetic);
}

// Jinja's power is left associative, unlike Python's.
Expr ExpressionParser::parse_power() {
  Chain chain(parse_unary(true));
  while (tokens_.take_operator("**")) chain.add(Operator::kPower, parse_unary(true));
  return chain.finish(ExprKind::kArithmetic);
}

Expr ExpressionParser::parse_unary(bool with_filters) {
  Expr expr;
  if (tokens_.at_operator("-") || tokens_.at_operator("+")) {
    const NestingGuard guard(depth, tokens_);
    expr.kind = tokens_.take().text == "-" ? ExprKind::kNegative : ExprKind::kPositive;
    expr.operands.push_back(parse_unary(false));
  } else {
    expr = parse_primary();
  }
  parse_postfixes(expr);
  if (with_filters) parse_filters_and_tests(expr);
  return expr;
}

Expr ExpressionParser::parse_primary() {
  switch (tokens_.current().kind) {
    case TokenKind::kName: {
      const std::string name = tokens_.take().text;
      if (name == "true" || name == "True") return {.constant = Value::boolean(true)};
      if (name == "false" || name == "False") return {.constant = Value::boolean(false)};
      if (name == "none" || name == "None") return {.constant = Value::none()};
      return {.kind = ExprKind::kName, .name = tokens_.intern(name)};
    }
    case TokenKind::kString: {
      std::string joined;
      while (tokens_.at(TokenKind::kString)) joined += tokens_.take().text;
      return {.constant = Value::string(joined)};
    }
    case TokenKind::kInteger:
      return {.constant = Value::integer(tokens_.take().integer)};
    case TokenKind::kFloat:
      return {.constant = Value::real(tokens_.take().real)};
    default:
      break;
  }
  if (tokens_.at_operator("(")) return parse_parenthesis();
  if (tokens_.at_operator("[")) return parse_items(ExprKind::kList, "]");
  if (tokens_.at_operator("{")) return parse_items(ExprKind::kDict, "}");
  tokens_.fail("unexpected " + describe(tokens_.current()));
}

Expr ExpressionParser::parse_parenthesis() {
  tokens_.take();
  if (tokens_.take_operator(")")) return {.kind = ExprKind::kTuple};
  Expr expr = parse_tuple();
  tokens_.expect_operator(")");
  return expr;
}

Expr ExpressionParser::parse_items(ExprKind kind, std::string_view closing) {
  tokens_.take();
  Expr expr{.kind = kind};
  while (!tokens_.at_operator(closing)) {
    if (!expr.operands.empty()) tokens_.expect_operator(",");
    if (tokens_.at_operator(closing)) break;
    expr.operands.push_back(parse_expression());
    if (kind != ExprKind::kDict) continue;
    tokens_.expect_operator(":");
    expr.operands.push_back(parse_expression());
  }
  tokens_.take();
  return expr;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return tokens_.at(TokenKind::kOutputEnd) || tokens_.at(TokenKind::kStatementEnd) ||
         tokens_.at_operator(")") || (!end_name.empty() && tokens_.at_name(end_name));
}

Expr ExpressionParser::parse_tuple(Ternary ternary, std::string_view end_name) {
  if (at_tuple_end(end_name)) {
    tokens_.fail("expected an expression but found " + describe(tokens_.current()));
  }
  Expr first = parse_expression(ternary);
  if (!tokens_.at_operator(",")) return first;
  Expr tuple{.kind = ExprKind::kTuple};
  tuple.operands.push_back(std::move(first));
  while (tokens_.take_operator(",")) {
    if (at_tuple_end(end_name)) break;
    tuple.operands.push_back(parse_expression(ternary));
  }
  return tuple;
}

Target ExpressionParser::parse_single_target(bool attribute_allowed) {
  Target target;
  if (tokens_.take_operator("(")) {
    const NestingGuard guard(depth, tokens_);
    target = parse_target({}, attribute_allowed);
    tokens_.expect_operator(")");
    return target;
  }
  const std::string name = tokens_.expect_any_name();
  if (is_constant_name(name)) tokens_.fail("cannot assign to '" + name + "'");
  target.name = tokens_.intern(name);
  if (attribute_allowed && tokens_.take_operator(".")) target.attribute = tokens_.expect_any_name();
  return target;
}

Target ExpressionParser::parse_target(std::string_view end_name, bool attribute_allowed) {
  Target first = parse_single_target(attribute_allowed);
  if (!tokens_.at_operator(",")) return first;
  Target tuple;
  tuple.elements.push_back(std::move(first));
  while (tokens_.take_operator(",")) {
    if (at_tuple_end(end_name) || tokens_.at_operator("=")) break;
    tuple.elements.push_back(parse_single_target(attribute_allowed));
  }
  return tuple;
}

void ExpressionParser::parse_postfixes(Expr& base) {
  while (true) {
    if (tokens_.at_operator(".") || tokens_.at_operator("[")) {
      postfixes_of(base).push_back(parse_subscript());
    } else if (tokens_.at_operator("(")) {
      postfixes_of(base).push_back(parse_call());
    } else {
      return;
    }
  }
}

void ExpressionParser::parse_filters_and_tests(Expr& base) {
  while (true) {
    if (tokens_.take_operator("|")) {
      postfixes_of(base).push_back(parse_filter());
    } else if (tokens_.at_name("is")) {
      postfixes_of(base).push_back(parse_test());
    } else if (tokens_.at_operator("(")) {
      postfixes_of(base).push_back(parse_call());
    } else {
      return;
    }
  }
}

Postfix ExpressionParser::parse_subscript() {
  Postfix postfix{.line = tokens_.line()};
  if (tokens_.take_operator(".")) {
    if (tokens_.at(TokenKind::kInteger)) {
      postfix.kind = PostfixKind::kItem;
      postfix.index.push_back(parse_primary());
    } else {
      postfix.name = tokens_.expect_any_name();
    }
    return postfix;
  }
  tokens_.take();
  if (tokens_.at_operator("]")) tokens_.fail("an index is missing between [ and ]");
  postfix.kind = PostfixKind::kItem;
  if (!tokens_.at_operator(":")) postfix.index.push_back(parse_expression());
  if (tokens_.at_operator(":")) {
    postfix.kind = PostfixKind::kSlice;
    postfix.bounds.resize(3);
    if (!postfix.index.empty()) postfix.bounds[0] = std::move(postfix.index[0]);
    postfix.index.clear();
    for (size_t i = 1; i < 3 && tokens_.take_operator(":"); ++i) {
      if (!tokens_.at_operator(":") && !tokens_.at_operator("]")) {
        postfix.bounds[i] = parse_expression();
      }
    }
  }
  tokens_.expect_operator("]");
  return postfix;
}

Postfix ExpressionParser::parse_call() {
  return {.kind = PostfixKind::kCall, .line = tokens_.line(), .arguments = parse_arguments()};
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  tokens_.expect_operator("(");
  bool first = true;
  while (!tokens_.at_operator(")")) {
    if (!first) tokens_.expect_operator(",");
    if (!first && tokens_.at_operator(")")) break;
    first = false;
    const bool after_star = !arguments.star.empty() || !arguments.double_star.empty();
    if (tokens_.take_operator("*")) {
      if (after_star) tokens_.fail("a call has two starred arguments");
      arguments.star.push_back(parse_expression());
    } else if (tokens_.take_operator("**")) {
      if (!arguments.double_star.empty()) tokens_.fail("a call has two ** arguments");
      arguments.double_star.push_back(parse_expression());
    } else if (tokens_.at(TokenKind::kName) && tokens_.next().kind == TokenKind::kOperator &&
               tokens_.next().text == "=") {
      std::string name = tokens_.take().text;
      tokens_.take();
      for (const auto& [given, value] : arguments.named) {
        if (given == name) tokens_.fail("argument '" + name + "' is given twice");
      }
      arguments.named.push_back({std::move(name), parse_expression()});
    } else {
      if (after_star || !arguments.named.empty()) {
        tokens_.fail("a positional argument follows a named or starred one");
      }
      arguments.positional.push_back(parse_expression());
    }
  }
  tokens_.take();
  return arguments;
}

std::vector<Postfix> ExpressionParser::parse_filters() {
  std::vector<Postfix> filters;
  while (tokens_.take_operator("|")) filters.push_back(parse_filter());
  return filters;
}

Postfix ExpressionParser::parse_filter() {
  Postfix filter{.kind = PostfixKind::kFilter, .line = tokens_.line()};
  filter.name = tokens_.expect_any_name();
  if (tokens_.at_operator("(")) filter.arguments = parse_arguments();
  return filter;
}

bool ExpressionParser::at_test_argument() const {
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      return !tokens_.at_name("else") && !tokens_.at_name("or") && !tokens_.at_name("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return tokens_.at_operator("[") || tokens_.at_operator("{");
  }
}

Postfix ExpressionParser::parse_test() {
  Postfix test{.kind = PostfixKind::kTest, .line = tokens_.take().line};
  test.negated = tokens_.take_name("not");
  test.name = tokens_.expect_any_name();
  if (tokens_.at_operator("(")) {
    test.arguments = parse_arguments();
  } else if (at_test_argument()) {
    if (tokens_.at_name("is")) tokens_.fail("tests cannot be chained with 'is'");
    const NestingGuard guard(depth, tokens_);
    Expr argument = parse_primary();
    parse_postfixes(argument);
    test.arguments.positional.push_back(std::move(argument));
  }
  return test;
}

}  // namespace outrider::jinja
