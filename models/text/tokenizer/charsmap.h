// SentencePiece's compiled normalization rules ("precompiled_charsmap"): a double array trie from
// byte strings to replacement texts. Read once at load; immutable, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class Charsmap {
 public:
  // The bytes: size of the trie (32 bits, little endian), trie, texts that end with a zero byte.
  // Throws Error when they are not that.
  explicit Charsmap(std::string_view bytes);

  // What replaces `text`, which is what the shortest rule that begins it says; none: nothing does.
  std::optional<std::string_view> replacement_of(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace outrider
