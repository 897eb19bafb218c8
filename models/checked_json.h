// The JSON gate in front of every document of a model folder: size, depth, syntax and doubled keys
// are checked before anything is built from it. Used by the readers of configurations and weights;
// any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace outrider {

// A name out of a file, for a sentence: cut at 200 bytes, control characters shown as '?'.
std::string printable(const std::string& name);

struct JsonLimits {
  size_t max_bytes = 4u << 20;
  int max_depth = 16;
};

// Throws Error naming origin when the text is not one JSON object, is nested deeper than the limit,
// or names a key twice in one object. The parser is iterative, so no depth harms it; what is built
// from a checked text afterwards may recurse.
void check_json(const std::string& text, const JsonLimits& limits, const std::string& origin);

// A whole JSON file, checked.
std::string read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace outrider
