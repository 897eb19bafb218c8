// The gate in front of every JSON text from outside: size, depth, number of values, syntax and
// doubled keys are judged before anything is built from it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace outrider {

struct JsonLimits {
  size_t max_bytes = 4u << 20;
  size_t max_depth = 16;
  size_t max_values = 2'000'000;
  size_t max_keys = SIZE_MAX;  // of one object
};

// What is wrong with the text, to be said after the name of where it is from: "is not valid JSON
// near byte 7"; empty when it is one object within the limits. The parser is iterative, so no depth
// harms it; what is built from a checked text afterwards may recurse.
std::string json_fault(std::string_view text, const JsonLimits& limits);

}  // namespace outrider
