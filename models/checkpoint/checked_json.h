// The JSON documents of a model folder, through the gate of runtime/base/files/json_gate.h. Used by the
// readers of configurations and weights; any thread.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/files/json_gate.h"

namespace outrider {

// A name out of a file, for a sentence: cut at 200 bytes, control characters shown as '?'.
std::string printable(const std::string& name);

// Throws Error naming origin when json_fault() finds something.
void check_json(const std::string& text, const JsonLimits& limits, const std::string& origin);

// A whole JSON file, checked.
std::string read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace outrider
