// Hand-written equivalents of the well-known pre-tokenizer patterns. Every character of a text
// belongs to a match of these patterns, so a scanner only says where the match at `pos` ends.
// Linear in the match; pure; any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace outrider {

// End of the match that starts at text[pos]; text is valid UTF-8, pos < text.size().
using Scanner = size_t (*)(std::string_view text, size_t pos);

// The scanner for exactly this pattern text, or null.
Scanner find_scanner(std::string_view pattern);

}  // namespace outrider
