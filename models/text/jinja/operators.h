// What operators, indexing and iteration do to values, as in Python. Pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "models/text/jinja/ast.h"
#include "models/text/jinja/call.h"

namespace outrider::jinja {

Value arithmetic(Budget& budget, Operator op, const Value& left, const Value& right);
Value negate(const Value& value);
bool compare_with(Budget& budget, Operator op, const Value& left, const Value& right);
bool contains(Budget& budget, const Value& container, const Value& item);

// value.name and value[index]: undefined when absent; throws Failure on an undefined value.
Value get_attribute(const Value& value, std::string_view name);
Value get_item(Budget& budget, const Value& value, const Value& index);
Value get_slice(Budget& budget, const Value& value, const Value (&bounds)[3]);

// The elements a loop or filter would see: characters of a string, keys of a dict, nothing for
// undefined. Throws Failure for what cannot be iterated.
std::shared_ptr<const List> iterate(Budget& budget, const Value& value);
int64_t length_of(Budget& budget, const Value& value);

Value make_list(std::vector<Value> items, ListKind kind = ListKind::kList);

}  // namespace outrider::jinja
