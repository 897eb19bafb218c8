// Finds the matches of a tokenizer.json pattern: the well-known pre-tokenizer patterns by
// hand-written scanners, any other by PCRE2. Immutable after construction; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "models/text/tokenizer/spec.h"

namespace outrider {

class PatternMatcher {
 public:
  // Throws Error when the pattern does not compile or uses a construct that means another thing in
  // the Oniguruma syntax of Hugging Face than in PCRE2.
  explicit PatternMatcher(const PatternSpec& pattern);
  ~PatternMatcher();

  // Calls visit(begin, end) for each match in order, empty ones included; `text` is valid UTF-8.
  // Throws Error when the pattern takes too many steps on this text.
  void for_each_match(std::string_view text,
                      const std::function<void(size_t, size_t)>& visit) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The GPT-2 pattern, which the ByteLevel pre-tokenizer implies.
extern const char* const kGpt2Pattern;

}  // namespace outrider
