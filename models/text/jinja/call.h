// Arguments of calls, filters, tests and methods, and the tables of the last three.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/jinja/value.h"

namespace outrider::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Text, Value>> named;  // names of ** may be a user's
};

// Hands out arguments in the order a function declares its parameters.
class ArgumentReader {
 public:
  ArgumentReader(std::string_view callee, const Arguments& arguments, size_t first = 0)
      : callee_(callee), arguments_(arguments), position_(first) {}

  const Value* next(std::string_view parameter);  // nullptr when not given
  const Value& require(std::string_view parameter);
  bool next_bool(std::string_view parameter, bool otherwise);
  int64_t next_int(std::string_view parameter, int64_t otherwise);  // none counts as not given
  const Text* next_text(std::string_view parameter);                // none counts as not given
  void finish() const;                                              // throws when some are left
  const Arguments& take_all();                                      // none is left

 private:
  std::string_view callee_;
  const Arguments& arguments_;
  size_t position_;
  size_t named_used_ = 0;
};

// Each throws Failure: unknown name, wrong arguments, a value of the wrong type.
Value apply_filter(Budget& budget,
                   std::string_view name,
                   const Value& value,
                   const Arguments& arguments);
bool apply_test(Budget& budget,
                std::string_view name,
                const Value& value,
                const Arguments& arguments);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// A method as a callable, which keeps the view of its name. find_method: if the value has it.
Value bound_method(const Value& receiver, std::string_view name);
std::optional<Value> find_method(const Value& value, std::string_view name);
Value call_method(Budget& budget, const Callable& method, const Arguments& arguments);

// The row of a table with this name; nullptr when there is none.
template <typename Row, size_t kSize>
const Row* find_named(const Row (&table)[kSize], std::string_view name) {
  const Row* found = std::ranges::find(table, name, &Row::name);
  return found == std::end(table) ? nullptr : found;
}

// Throws Failure naming what was expected of `callee`.
const Text& expect_text(const Value& value, std::string_view callee);
int64_t expect_int(const Value& value, std::string_view callee);
[[noreturn]] void fail_type(std::string_view callee, const Value& value);

}  // namespace outrider::jinja
