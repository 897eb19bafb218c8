// Template source to program. Called once per template, at load.
#pragma once

#include <string_view>

#include "models/text/jinja/ast.h"

namespace outrider::jinja {

// Throws outrider::Error naming the line for anything outside our subset of Jinja and for nesting
// deeper than kMaxNesting.
Program parse_program(std::string_view source);

}  // namespace outrider::jinja
