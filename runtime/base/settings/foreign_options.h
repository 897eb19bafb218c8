// Everyday options of vLLM and llama-server that have no counterpart here. A value that changes
// nothing is taken with a sentence for the log; any other is refused with one.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/settings/options.h"

namespace outrider {

// The rows; what they take adds its sentence to *accepted, which must outlive them.
std::vector<Option> foreign_options(std::vector<std::string>* accepted);

}  // namespace outrider
