// The two ways Python fills a text with values, and one value by one format spec. Widths and
// precisions are limited, steps are charged; each throws Failure for what does not fit.
#pragma once

#include <string_view>
#include <vector>

#include "models/text/jinja/call.h"

namespace outrider::jinja {

// "%s and %d", as Python's % on strings.
Value format_percent(Budget& budget, const Text& format, const std::vector<Value>& values);
// "{} and {name:>8}", as Python's str.format. Of format specs the forms 'z', '#' for floats, and
// zeros with thousands are refused.
Value format_braces(Budget& budget, const Text& format, const Arguments& arguments);
// format(value, "*>+10,.2f").
Text format_by_spec(Budget& budget, const Value& value, std::string_view spec);

// The digits at `at` as a number, which ends behind them.
size_t read_format_size(std::string_view bytes, size_t& at);

}  // namespace outrider::jinja
