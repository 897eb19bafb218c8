// loop.index, loop.last, loop.cycle(...) and their kin.
#include "models/text/jinja/loop.h"

#include <string>

namespace outrider::jinja {

namespace {

Value neighbour(const LoopState& loop, bool next) {
  if (next) {
    return loop.index + 1 < loop.items->items.size() ? loop.items->items[loop.index + 1]
                                                     : Value::undefined("there is no next item");
  }
  return loop.index > 0 ? loop.items->items[loop.index - 1]
                        : Value::undefined("there is no previous item");
}

}  // namespace

Value loop_attribute(const Value& value, std::string_view name) {
  const LoopState& loop = value.loop_state();
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return neighbour(loop, false);
  if (name == "nextitem") return neighbour(loop, true);
  if (name == "cycle") return bound_method(value, "cycle");
  if (name == "changed") return bound_method(value, "changed");
  return Value::undefined("loop has no attribute '" + std::string(name) + "'");
}

Value call_loop_method(Budget& budget,
                       LoopState& loop,
                       std::string_view name,
                       const Arguments& arguments) {
  if (!arguments.named.empty()) throw Failure("loop methods take no named arguments");
  const auto& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) throw Failure("loop.cycle needs at least one value");
    return values[loop.index % values.size()];
  }
  bool same = loop.last_values && loop.last_values->size() == values.size();
  for (size_t i = 0; same && i < values.size(); ++i) {
    same = equals(budget, values[i], (*loop.last_values)[i]);
  }
  if (!same) loop.last_values = values;
  return Value::boolean(!same);
}

}  // namespace outrider::jinja
