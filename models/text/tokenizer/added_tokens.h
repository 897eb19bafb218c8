// Finds added tokens written out in a text: leftmost, longest first, by a trie. Immutable after
// construction; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/tokenizer/normalizer.h"
#include "models/text/tokenizer/prefix_trie.h"
#include "models/text/tokenizer/spec.h"

namespace outrider {

// A piece of the text: plain (id -1), or an added token with the white space its flags swallowed.
struct AddedTokenPiece {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

class AddedTokenMatcher {
 public:
  // The tokens behind the texts they are searched by; of two with one text the first stays.
  explicit AddedTokenMatcher(std::vector<std::pair<std::string, AddedToken>> tokens);

  // The pieces of the whole text in order. Special tokens are passed over when `parse_special` is
  // false, control tokens where they touch a byte a user wrote.
  std::vector<AddedTokenPiece> split(const MarkedText& text, bool parse_special) const;

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };

  bool find_next(std::string_view text, size_t pos, Match& match) const;
  bool is_accepted(const MarkedText& text, const Match& match, bool parse_special) const;

  std::vector<std::pair<std::string, AddedToken>> tokens_;
  PrefixTrie trie_;  // of indices into tokens_
  std::array<bool, 256> starts_token_{};
};

}  // namespace outrider
