// The tests behind `is`.
#include <fmt/core.h>

#include "models/text/jinja/call.h"
#include "models/text/jinja/operators.h"

namespace outrider::jinja {

namespace {

using Test = bool (*)(Budget&, const Value&, ArgumentReader&);

template <Kind kKind>
bool is_kind(Budget&, const Value& value, ArgumentReader&) {
  return value.is(kKind);
}

bool is_defined(Budget&, const Value& value, ArgumentReader&) {
  return !value.is(Kind::kUndefined);
}

bool is_number_test(Budget&, const Value& value, ArgumentReader&) { return value.is_number(); }

template <bool kWanted>
bool is_exactly(Budget&, const Value& value, ArgumentReader&) {
  return value.is(Kind::kBool) && value.as_bool() == kWanted;
}

// Jinja's undefined has a length and an index operator, so it passes as sequence and iterable.
bool is_sequence(Budget&, const Value& value, ArgumentReader&) {
  if (value.is(Kind::kList)) {
    return value.items().kind != ListKind::kGenerator && value.items().kind != ListKind::kView;
  }
  return value.is(Kind::kString) || value.is(Kind::kDict) || value.is(Kind::kUndefined);
}

bool is_iterable(Budget&, const Value& value, ArgumentReader&) {
  return value.is(Kind::kList) || value.is(Kind::kString) || value.is(Kind::kDict) ||
         value.is(Kind::kUndefined) || value.is(Kind::kLoop);
}

bool is_callable(Budget&, const Value& value, ArgumentReader&) {
  return value.is(Kind::kCallable) || value.is(Kind::kUndefined) || value.is(Kind::kLoop);
}

template <Operator kOperator>
bool compares(Budget& budget, const Value& value, ArgumentReader& arguments) {
  return compare_with(budget, kOperator, value, arguments.require("other"));
}

bool leaves(Budget& budget, const Value& value, int64_t divisor, double remainder) {
  if (!value.is_number()) fail_type("a test for divisibility", value);
  const Value rest = arithmetic(budget, Operator::kModulo, value, Value::integer(divisor));
  return rest.as_double() == remainder;
}

bool is_odd(Budget& budget, const Value& value, ArgumentReader&) {
  return leaves(budget, value, 2, 1);
}

bool is_even(Budget& budget, const Value& value, ArgumentReader&) {
  return leaves(budget, value, 2, 0);
}

bool is_divisible(Budget& budget, const Value& value, ArgumentReader& arguments) {
  return leaves(budget, value, expect_int(arguments.require("num"), "divisibleby"), 0);
}

bool is_same(Budget& budget, const Value& value, ArgumentReader& arguments) {
  const Value& other = arguments.require("other");
  if (value.kind() != other.kind()) return false;
  if (value.is(Kind::kList)) return value.shared_items() == other.shared_items();
  if (value.is(Kind::kDict)) return &value.entries() == &other.entries();
  return equals(budget, value, other);
}

template <bool kUpper>
bool has_case(Budget& budget, const Value& value, ArgumentReader&) {
  const Value text = Value::string(to_text(budget, value));
  const auto method = find_method(text, kUpper ? "isupper" : "islower");
  return is_true(call_method(budget, method->function(), {}));
}

bool names_filter(Budget&, const Value& value, ArgumentReader&) {
  return value.is(Kind::kString) && is_filter(value.bytes());
}

bool names_test(Budget&, const Value& value, ArgumentReader&) {
  return value.is(Kind::kString) && is_test(value.bytes());
}

bool is_never(Budget&, const Value&, ArgumentReader&) { return false; }

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr NamedTest kTests[] = {{"defined", is_defined},
                                {"undefined", is_kind<Kind::kUndefined>},
                                {"none", is_kind<Kind::kNone>},
                                {"string", is_kind<Kind::kString>},
                                {"number", is_number_test},
                                {"integer", is_kind<Kind::kInt>},
                                {"float", is_kind<Kind::kDouble>},
                                {"boolean", is_kind<Kind::kBool>},
                                {"mapping", is_kind<Kind::kDict>},
                                {"sequence", is_sequence},
                                {"iterable", is_iterable},
                                {"callable", is_callable},
                                {"true", is_exactly<true>},
                                {"false", is_exactly<false>},
                                {"eq", compares<Operator::kEqual>},
                                {"equalto", compares<Operator::kEqual>},
                                {"==", compares<Operator::kEqual>},
                                {"ne", compares<Operator::kNotEqual>},
                                {"!=", compares<Operator::kNotEqual>},
                                {"lt", compares<Operator::kLess>},
                                {"lessthan", compares<Operator::kLess>},
                                {"<", compares<Operator::kLess>},
                                {"le", compares<Operator::kLessEqual>},
                                {"<=", compares<Operator::kLessEqual>},
                                {"gt", compares<Operator::kGreater>},
                                {"greaterthan", compares<Operator::kGreater>},
                                {">", compares<Operator::kGreater>},
                                {"ge", compares<Operator::kGreaterEqual>},
                                {">=", compares<Operator::kGreaterEqual>},
                                {"in", compares<Operator::kIn>},
                                {"odd", is_odd},
                                {"even", is_even},
                                {"divisibleby", is_divisible},
                                {"sameas", is_same},
                                {"lower", has_case<false>},
                                {"upper", has_case<true>},
                                {"filter", names_filter},
                                {"test", names_test},
                                {"escaped", is_never}};

}  // namespace

bool is_test(std::string_view name) { return find_named(kTests, name) != nullptr; }

bool apply_test(Budget& budget,
                std::string_view name,
                const Value& value,
                const Arguments& arguments) {
  budget.step();
  const NamedTest* found = find_named(kTests, name);
  if (found == nullptr) throw Failure(fmt::format("there is no test named '{}'", name));
  ArgumentReader reader(name, arguments);
  const bool passed = found->test(budget, value, reader);
  reader.finish();
  return passed;
}

}  // namespace outrider::jinja
