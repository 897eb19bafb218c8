// Expressions: one function per kind of node.
#include "models/text/jinja/evaluator.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

Value Evaluator::evaluate(const Expr& expr) {
  budget_.step();
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return look_up(expr.name);
    default:
      break;
  }
  const DepthGuard guard(budget_);
  switch (expr.kind) {
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_sequence(expr);
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kOr:
    case ExprKind::kAnd:
      return evaluate_logic(expr);
    case ExprKind::kNot:
      return Value::boolean(!is_true(evaluate(expr.operands[0])));
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kArithmetic:
      return evaluate_arithmetic(expr);
    case ExprKind::kConcatenate:
      return evaluate_concatenation(expr);
    case ExprKind::kNegative:
      return negate(evaluate(expr.operands[0]));
    case ExprKind::kPositive:
      return negate(negate(evaluate(expr.operands[0])));
    case ExprKind::kConditional:
      return evaluate_conditional(expr);
    default:
      return evaluate_postfix(expr);
  }
}

Value Evaluator::look_up(int name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    budget_.step(1 + static_cast<int64_t>(scope->variables.size() / 64));
    for (const auto& [held, value] : scope->variables) {
      if (held == name) return value;
    }
  }
  return Value::undefined("'" + program_.names[static_cast<size_t>(name)] + "' is undefined");
}

Value Evaluator::evaluate_sequence(const Expr& expr) {
  std::vector<Value> items;
  for (const Expr& operand : expr.operands) items.push_back(evaluate(operand));
  return make_list(std::move(items),
                   expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

Value Evaluator::evaluate_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i + 1 < expr.operands.size(); i += 2) {
    Value key = evaluate(expr.operands[i]);
    dict.set(std::move(key), evaluate(expr.operands[i + 1]));
  }
  return Value::dict(std::move(dict));
}

// The value that decided, not a bool, as in Python.
Value Evaluator::evaluate_logic(const Expr& expr) {
  const bool stops_at = expr.kind == ExprKind::kOr;
  for (size_t i = 0; i + 1 < expr.operands.size(); ++i) {
    Value value = evaluate(expr.operands[i]);
    if (is_true(value) == stops_at) return value;
  }
  return evaluate(expr.operands.back());
}

Value Evaluator::evaluate_compare(const Expr& expr) {
  Value left = evaluate(expr.operands[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(expr.operands[i + 1]);
    if (!compare_with(budget_, expr.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::evaluate_arithmetic(const Expr& expr) {
  Value result = evaluate(expr.operands[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const Value right = evaluate(expr.operands[i + 1]);
    result = arithmetic(budget_, expr.operators[i], result, right);
  }
  return result;
}

Value Evaluator::evaluate_concatenation(const Expr& expr) {
  TextBuilder builder(budget_);
  for (const Expr& operand : expr.operands) append_string(budget_, builder, evaluate(operand));
  return Value::string(builder.take());
}

Value Evaluator::evaluate_conditional(const Expr& expr) {
  if (is_true(evaluate(expr.operands[0]))) return evaluate(expr.operands[1]);
  if (expr.operands.size() > 2) return evaluate(expr.operands[2]);
  return Value::undefined("a conditional expression without else was false");
}

Value Evaluator::evaluate_postfix(const Expr& expr) {
  Value value = evaluate(expr.operands[0]);
  for (const Postfix& postfix : expr.postfixes) value = apply_postfix(postfix, value);
  return value;
}

Value Evaluator::apply_slice(const Postfix& postfix, const Value& value) {
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i) {
    if (postfix.bounds[i]) bounds[i] = evaluate(*postfix.bounds[i]);
  }
  return get_slice(budget_, value, bounds);
}

Value Evaluator::apply_postfix(const Postfix& postfix, const Value& value) {
  budget_.step();
  line_ = postfix.line;
  switch (postfix.kind) {
    case PostfixKind::kAttribute:
      return get_attribute(value, postfix.name);
    case PostfixKind::kItem:
      return get_item(budget_, value, evaluate(postfix.index[0]));
    case PostfixKind::kSlice:
      return apply_slice(postfix, value);
    case PostfixKind::kCall:
      return call(value, evaluate_arguments(postfix.arguments));
    case PostfixKind::kFilter:
      return apply_filter(budget_, postfix.name, value, evaluate_arguments(postfix.arguments));
    case PostfixKind::kTest:
      break;
  }
  const Arguments arguments = evaluate_arguments(postfix.arguments);
  return Value::boolean(apply_test(budget_, postfix.name, value, arguments) != postfix.negated);
}

Arguments Evaluator::evaluate_arguments(const CallArguments& arguments) {
  Arguments result;
  for (const Expr& expr : arguments.positional) result.positional.push_back(evaluate(expr));
  for (const auto& [name, expr] : arguments.named)
    result.named.emplace_back(Text{name, {}}, evaluate(expr));
  if (!arguments.star.empty()) {
    const auto items = iterate(budget_, evaluate(arguments.star[0]));
    budget_.step(static_cast<int64_t>(items->items.size()));
    for (const Value& item : items->items) result.positional.push_back(item);
  }
  if (!arguments.double_star.empty()) {
    const Value more = evaluate(arguments.double_star[0]);
    if (!more.is(Kind::kDict)) fail_type("**", more);
    budget_.step(static_cast<int64_t>(more.entries().items.size()));
    for (const auto& [key, value] : more.entries().items) {
      result.named.emplace_back(expect_text(key, "**"), value);
    }
  }
  return result;
}

}  // namespace outrider::jinja
