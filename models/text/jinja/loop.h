// The `loop` variable of a for statement. Owned by the Evaluator for the whole rendering, because a
// template may keep it beyond its loop.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "models/text/jinja/call.h"

namespace outrider::jinja {

struct LoopState {
  std::shared_ptr<const List> items;
  size_t index = 0;                               // of the present element
  std::optional<std::vector<Value>> last_values;  // of loop.changed
};

Value loop_attribute(const Value& loop, std::string_view name);
Value call_loop_method(Budget& budget,
                       LoopState& loop,
                       std::string_view name,
                       const Arguments& arguments);

}  // namespace outrider::jinja
