// How deep a JSON text nests, told before it is parsed: the JSON library's values recurse when they
// are copied or printed, so depth from outside has to be refused first.
#pragma once

#include <string_view>

namespace outrider {

// Of texts that mean something to us: requests, answers, lines of files.
inline constexpr int kMaxJsonDepth = 64;

// Looks at brackets outside strings only, so it is right for every text that parses.
constexpr bool json_nests_deeper_than(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace outrider
