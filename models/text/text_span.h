// A byte range of a text. The chat template marks with it which bytes of a rendered prompt a user
// wrote, and the tokenizer never reads a special token out of such bytes.
#pragma once

#include <cstddef>

namespace outrider {

// Half-open range [begin, end) in bytes.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
};

}  // namespace outrider
