// Arithmetic, comparison, containment, indexing, slicing and iteration.
#include "models/text/jinja/operators.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "models/text/jinja/format.h"

namespace outrider::jinja {

Value make_list(std::vector<Value> items, ListKind kind) {
  return Value::list(List{.items = std::move(items), .kind = kind});
}

namespace {

constexpr std::string_view kSymbols[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

[[noreturn]] void fail_operands(Operator op, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::kUndefined)) fail_type("an operator", *side);
  }
  throw Failure(fmt::format("'{}' does not work between '{}' and '{}'",
                            kSymbols[static_cast<int>(op)],
                            type_name(left),
                            type_name(right)));
}

[[noreturn]] void fail_overflow() { throw Failure("a number grows beyond 64 bits"); }

int64_t floor_divide(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw Failure("division by zero");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
  }
  return Value::integer(result);
}

Value integer_arithmetic(Operator op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) fail_overflow();
      return Value::integer(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) fail_overflow();
      return Value::integer(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) fail_overflow();
      return Value::integer(result);
    case Operator::kPower:
      return power(left, right);
    default:
      break;
  }
  if (right == 0) throw Failure("division by zero");
  if (op == Operator::kDivide) {
    return Value::real(static_cast<double>(left) / static_cast<double>(right));
  }
  if (right == -1) {  // the quotient of the smallest integer does not fit
    if (op == Operator::kModulo) return Value::integer(0);
    if (__builtin_sub_overflow(int64_t{0}, left, &result)) fail_overflow();
    return Value::integer(result);
  }
  const int64_t quotient = floor_divide(left, right);
  return Value::integer(op == Operator::kModulo ? left - quotient * right : quotient);
}

// Python's float // and %: the remainder takes the divisor's sign.
Value floor_arithmetic(Operator op, double left, double right) {
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0) {
    if ((right < 0) != (remainder < 0)) {
      remainder += right;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, right);
  }
  if (op == Operator::kModulo) return Value::real(remainder);
  if (quotient == 0) return Value::real(std::copysign(0.0, left / right));
  const double floored = std::floor(quotient);
  return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value real_arithmetic(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(left + right);
    case Operator::kSubtract:
      return Value::real(left - right);
    case Operator::kMultiply:
      return Value::real(left * right);
    case Operator::kPower: {
      if (left == 0 && right < 0) throw Failure("division by zero");
      const double result = std::pow(left, right);
      if (!std::isfinite(result) && std::isfinite(left) && std::isfinite(right)) {
        throw Failure("a power has no real or no finite value");
      }
      return Value::real(result);
    }
    default:
      break;
  }
  if (right == 0) throw Failure("division by zero");
  if (op == Operator::kDivide) return Value::real(left / right);
  return floor_arithmetic(op, left, right);
}

bool is_sequence(const Value& value) {
  return value.is(Kind::kList) &&
         (value.items().kind == ListKind::kList || value.items().kind == ListKind::kTuple);
}

Value repeat(Budget& budget, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (value.is(Kind::kString)) {
    TextBuilder builder(budget);
    for (int64_t i = 0; i < times && !value.bytes().empty(); ++i) {
      budget.step();
      builder.append(value.text());
    }
    return Value::string(builder.take());
  }
  const auto& items = value.items().items;
  std::vector<Value> result;
  for (int64_t i = 0; i < times && !items.empty(); ++i) {
    budget.step(static_cast<int64_t>(items.size()));
    result.insert(result.end(), items.begin(), items.end());
  }
  return make_list(std::move(result), value.items().kind);
}

Value add_sequences(Budget& budget, const Value& left, const Value& right) {
  std::vector<Value> result = left.items().items;
  const auto& more = right.items().items;
  budget.step(static_cast<int64_t>(result.size() + more.size()));
  result.insert(result.end(), more.begin(), more.end());
  return make_list(std::move(result), left.items().kind);
}

}  // namespace

Value arithmetic(Budget& budget, Operator op, const Value& left, const Value& right) {
  budget.step();
  if (left.is_integral() && right.is_integral()) {
    return integer_arithmetic(op, left.as_int(), right.as_int());
  }
  if (left.is_number() && right.is_number()) {
    return real_arithmetic(op, left.as_double(), right.as_double());
  }
  if (op == Operator::kAdd) {
    if (left.is(Kind::kString) && right.is(Kind::kString)) {
      TextBuilder builder(budget);
      builder.append(left.text());
      builder.append(right.text());
      return Value::string(builder.take());
    }
    if (is_sequence(left) && is_sequence(right) && left.items().kind == right.items().kind) {
      return add_sequences(budget, left, right);
    }
  }
  if (op == Operator::kMultiply) {
    if ((left.is(Kind::kString) || is_sequence(left)) && right.is_integral()) {
      return repeat(budget, left, right.as_int());
    }
    if ((right.is(Kind::kString) || is_sequence(right)) && left.is_integral()) {
      return repeat(budget, right, left.as_int());
    }
  }
  if (op == Operator::kModulo && left.is(Kind::kString)) {
    const bool tuple = right.is(Kind::kList) && right.items().kind == ListKind::kTuple;
    return format_percent(
        budget, left.text(), tuple ? right.items().items : std::vector<Value>{right});
  }
  fail_operands(op, left, right);
}

Value negate(const Value& value) {
  if (value.is_integral()) return integer_arithmetic(Operator::kSubtract, 0, value.as_int());
  if (value.is(Kind::kDouble)) return Value::real(-value.as_double());
  fail_type("'-'", value);
}

bool contains(Budget& budget, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString)) fail_operands(Operator::kIn, item, container);
      budget.work(container.bytes().size());
      return find(container.bytes(), item.bytes()) != std::string_view::npos;
    case Kind::kList:
      for (const Value& element : container.items().items) {
        if (equals(budget, element, item)) return true;
      }
      return false;
    case Kind::kDict:
      return container.entries().find(item) != nullptr;
    default:
      fail_operands(Operator::kIn, item, container);
  }
}

bool compare_with(Budget& budget, Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kEqual:
      return equals(budget, left, right);
    case Operator::kNotEqual:
      return !equals(budget, left, right);
    case Operator::kIn:
      return contains(budget, right, left);
    case Operator::kNotIn:
      return !contains(budget, right, left);
    default:
      break;
  }
  if (left.is(Kind::kUndefined) || right.is(Kind::kUndefined)) fail_operands(op, left, right);
  if (left.is_number() && right.is_number() &&
      (std::isnan(left.as_double()) || std::isnan(right.as_double()))) {
    return false;
  }
  const int order = compare(budget, left, right);
  switch (op) {
    case Operator::kLess:
      return order < 0;
    case Operator::kLessEqual:
      return order <= 0;
    case Operator::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

std::shared_ptr<const List> iterate(Budget& budget, const Value& value) {
  if (value.is(Kind::kList)) return value.shared_items();
  std::vector<Value> items;
  if (value.is(Kind::kDict)) {
    budget.step(static_cast<int64_t>(value.entries().items.size()));
    for (const auto& [key, item] : value.entries().items) items.push_back(key);
  } else if (value.is(Kind::kString)) {
    const std::string_view bytes = value.bytes();
    for (size_t at = 0; at < bytes.size();) {
      budget.step();
      const size_t begin = at;
      next_code_point(bytes, at);
      items.push_back(Value::string(substring(budget, value.text(), begin, at)));
    }
  } else if (!value.is(Kind::kUndefined)) {
    fail_type("a loop or filter", value);
  }
  return make_list(std::move(items)).shared_items();
}

int64_t length_of(Budget& budget, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      budget.work(value.bytes().size());
      return static_cast<int64_t>(count_code_points(value.bytes()));
    case Kind::kDict:
      return static_cast<int64_t>(value.entries().items.size());
    case Kind::kList:
      if (value.items().kind == ListKind::kGenerator) break;
      return static_cast<int64_t>(value.items().items.size());
    default:
      break;
  }
  fail_type("length", value);
}

}  // namespace outrider::jinja
