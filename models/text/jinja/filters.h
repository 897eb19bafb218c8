// The filters behind `|`, in two files: those on text and numbers, those on sequences; tojson has
// its own.
#pragma once

#include <string_view>

#include "models/text/jinja/call.h"

namespace outrider::jinja {

using Filter = Value (*)(Budget&, const Value&, const Arguments&);

struct NamedFilter {
  std::string_view name;
  Filter apply;
};

const NamedFilter* find_text_filter(std::string_view name);      // nullptr when there is none
const NamedFilter* find_sequence_filter(std::string_view name);  // nullptr when there is none

// Marks kept: what a marked string wrote between its quotes is marked.
Value to_json(Budget& budget, const Value& value, const Arguments& arguments);

}  // namespace outrider::jinja
