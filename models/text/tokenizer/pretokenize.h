// The pre-tokenizer stages: cuts a normalized text into the words the BPE model merges inside.
// Immutable after construction; any thread.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "models/text/tokenizer/regex.h"
#include "models/text/tokenizer/spec.h"

namespace outrider {

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // True when words are raw bytes to be read through the byte-level alphabet.
  bool is_byte_level() const { return byte_level_; }

  // Calls visit(word) for each word in order; the view is valid during the call. `is_text_start`:
  // the piece begins where the whole text begins (Metaspace with prepend_scheme "first").
  void for_each_word(std::string_view piece,
                     bool is_text_start,
                     const std::function<void(std::string_view)>& visit) const;

 private:
  struct Step {
    PreTokenizerStep spec;
    std::unique_ptr<PatternMatcher> matcher;  // kSplit and kByteLevel with use_regex
  };
  struct Piece;
  using Pieces = std::vector<Piece>;

  void apply(const Step& step, const Piece& piece, Pieces& out) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace outrider
