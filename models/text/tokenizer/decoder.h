// Token pieces back to text, one token at a time. The whole decode() and the streaming decoder both
// run on it, so they cannot differ. The decoder is immutable and shared; the state is one per
// sequence.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer/regex.h"
#include "models/text/tokenizer/spec.h"

namespace outrider {

struct DecodeState {
  struct Stage {
    // What came but is not certain yet: an unfinished character (byte level), a run of byte tokens
    // (byte fallback, where one bad byte turns the whole run into U+FFFD), what Strip may drop.
    std::string pending;
    bool started = false;   // a token came
    bool stripping = true;  // Strip after Fuse: all text so far was the character it drops
    size_t num_stripped = 0;
  };
  std::vector<Stage> stages;
  bool started = false;
};

class TokenDecoder {
 public:
  explicit TokenDecoder(const DecoderSpec& spec);

  // Appends to `out` what is certain after this token (vocabulary form).
  void push(DecodeState& state, std::string_view token, std::string& out) const;

  // Appends what is left; `state` is then that of a new sequence.
  void flush(DecodeState& state, std::string& out) const;

  // The bytes a token stands for in the middle of a text.
  std::string bytes_of(std::string_view token) const;

 private:
  struct Stage {
    DecoderStage spec;
    std::unique_ptr<PatternMatcher> matcher;  // kReplace
  };
  using Tokens = std::vector<std::string>;

  // Replaces the tokens by what the stage makes of them; `is_end`: none will follow.
  static void run(const Stage& stage, DecodeState::Stage& state, bool is_end, Tokens& tokens);
  void run_all(DecodeState& state, bool is_end, Tokens& tokens, std::string& out) const;

  std::vector<Stage> stages_;
  bool joins_with_spaces_ = false;
};

// The byte-level alphabet of GPT-2: every byte has a printable character.
// Character (UTF-8) of a byte, and of each of many.
const std::string& byte_level_character(unsigned char byte);
std::string byte_level_characters(std::string_view bytes);
// The bytes a byte-level token stands for; a token with any other character stands for itself.
std::string byte_level_bytes(std::string_view token);

}  // namespace outrider
