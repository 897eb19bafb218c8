// A buffer that a part of the transformer wants for a step; the transformer allocates all of them
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {

struct StepBuffer {
  float** at;                    // where the pointer is to be set
  std::vector<int64_t> factors;  // its number of floats, as a product
};

// Products of sizes that came from files and options; overflow would turn into a small allocation.
inline size_t checked_bytes(const std::vector<int64_t>& factors) {
  size_t bytes = sizeof(float);
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(factor), &bytes)) {
      throw Error("the model's buffers would be larger than any memory");
    }
  }
  return bytes;
}

}  // namespace outrider
