// Patterns of tokenizer.json, which Hugging Face reads with Oniguruma's Ruby syntax, in the syntax
// of PCRE2. Pure, at load, on one thread.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

// Classes inside classes and intersections become look-aheads and alternatives; \s, \w and scripts
// get Oniguruma's meaning. Throws Error for what PCRE2 would silently read another way.
std::string pcre2_pattern(std::string_view ruby_pattern);

}  // namespace outrider
