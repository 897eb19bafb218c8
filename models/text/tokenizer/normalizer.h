// The normalizer stages of a tokenizer.json over a text that remembers which bytes a user wrote.
// Immutable after construction; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/text/tokenizer/charsmap.h"
#include "models/text/tokenizer/regex.h"
#include "models/text/tokenizer/spec.h"

namespace outrider {

// Valid UTF-8 and, when a part of it is a user's, one flag byte per text byte (1 = a user wrote
// it). An empty `literal` means no byte is.
struct MarkedText {
  std::string text;
  std::string literal;
  // The first character is no longer the one the text began with, or is what became of several:
  // Metaspace with prepend_scheme "first" then does not take it for the start.
  bool lost_start = false;
};

class Normalizer {
 public:
  explicit Normalizer(const std::vector<NormalizerStep>& steps);
  void apply(MarkedText& text) const;

 private:
  struct Step {
    NormalizerStep spec;
    std::unique_ptr<PatternMatcher> matcher;   // kReplace
    std::unique_ptr<const Charsmap> charsmap;  // kPrecompiled
  };
  static MarkedText applied(const Step& step, MarkedText text);
  std::vector<Step> steps_;
};

}  // namespace outrider
