// The tojson filter: json.dumps of Python as Hugging Face calls it (no HTML escaping).
#pragma once

#include "models/text/jinja/call.h"

namespace outrider::jinja {

// Marks kept: what a marked string wrote between its quotes is marked.
Value to_json(Budget& budget, const Value& value, ArgumentReader& arguments);

}  // namespace outrider::jinja
