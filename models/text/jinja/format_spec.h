// One value by one format spec of str.format ("*>+10,.2f"). Pure; used by format_braces alone.
#pragma once

#include <string_view>

#include "models/text/jinja/value.h"

namespace outrider::jinja {

// format(value, spec) of Python; throws Failure.
Text format_by_spec(Budget& budget, const Value& value, std::string_view spec);

}  // namespace outrider::jinja
