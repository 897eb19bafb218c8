// A buffer that a part of the transformer wants for a step; the transformer allocates all of them
// together.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

struct StepBuffer {
  float** at;                    // where the pointer is to be set
  std::vector<int64_t> factors;  // its number of floats, as a product
};

}  // namespace outrider
