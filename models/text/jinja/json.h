// JSON text to template values.
#pragma once

#include <string_view>

#include "models/text/jinja/value.h"

namespace outrider::jinja {

enum class Trust {
  kRequest,  // strings and keys are literal: no special token may come out of them
  kConfig    // the model's own files
};

inline constexpr int kMaxJsonDepth = 64;

// One JSON value. Throws outrider::Error naming `what` for bad JSON and nesting over kMaxJsonDepth.
// Numbers keep Python's meaning: 1 an int, 1.0 a float, integers beyond 64 bits print as written.
Value parse_json(std::string_view text, Trust trust, std::string_view what);

}  // namespace outrider::jinja
