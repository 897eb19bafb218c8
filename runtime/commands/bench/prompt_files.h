// Files that say what is to be asked: prompts, or times and lengths of recorded requests. Nobody
// vouches for them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// No prompt file is read beyond this.
inline constexpr size_t kMaxPromptFileBytes = size_t{1} << 30;

// One request before it has words.
struct RequestShape {
  double arrival_s = 0;    // timed_trace: from the trace's first row
  int32_t input_len = 0;   // tokens; 0 = the text's
  int32_t output_len = 0;  // most tokens of the answer
  std::string text;        // custom: the prompt
};

// Lines of text, or JSON lines with "prompt" or "turns" (the first) and perhaps "output_tokens" (as
// vLLM's custom data sets) or "max_tokens"; output_len is 0 where none is said. Throws Error naming
// `origin` and the line.
std::vector<RequestShape> parse_prompt_lines(std::string_view text, const std::string& origin);

// JSON lines {"timestamp": ms, "input_length", "output_length"} in order of time, as Mooncake's;
// other members are not read. Throws Error naming `origin` and the line.
std::vector<RequestShape> parse_timed_trace(std::string_view text, const std::string& origin);

}  // namespace outrider
