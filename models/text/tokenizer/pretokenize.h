// The pre-tokenizer stages: cuts a normalized text into the words the model encodes one by one.
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
  // `takes_bytes`: the model can read raw bytes through the byte-level alphabet by itself.
  PreTokenizer(const std::vector<PreTokenizerStep>& steps, bool takes_bytes);

  // True when words are such bytes: ByteLevel is the last stage. A ByteLevel with stages behind it,
  // or before another model, writes the alphabet's characters.
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
    bool writes_alphabet = false;             // kByteLevel
  };
  struct Piece;
  using Pieces = std::vector<Piece>;

  static void apply(const Step& step, const Piece& piece, Pieces& out);
  static void apply_byte_level(const Step& step, const Piece& piece, Pieces& out);
  static void apply_metaspace(const Step& step, const Piece& piece, Pieces& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace outrider
