// Token pieces back to text, one token at a time. The whole decode() and the streaming decoder both
// run on it, so they cannot differ. The decoder is immutable and shared; the state is one per
// sequence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "models/text/tokenizer/spec.h"

namespace outrider {

struct DecodeState {
  // Bytes that came but are not certain yet: an unfinished character (byte level), or a run of byte
  // tokens (byte fallback, where one bad byte turns the whole run into U+FFFD).
  std::string pending;
  bool started = false;   // a token came
  bool stripping = true;  // all text so far was the character Strip drops
  size_t num_stripped = 0;
};

class TokenDecoder {
 public:
  explicit TokenDecoder(DecoderSpec spec);

  // Appends to `out` what is certain after this token (vocabulary form).
  void push(DecodeState& state, std::string_view token, std::string& out) const;

  // Appends what is left; `state` is then that of a new sequence.
  void flush(DecodeState& state, std::string& out) const;

  // The bytes a token stands for in the middle of a text.
  std::string bytes_of(std::string_view token) const;

 private:
  void push_bytes(DecodeState& state, std::string_view bytes, std::string& out) const;
  void push_piece(DecodeState& state, std::string_view token, std::string& out) const;
  void emit_stripped(DecodeState& state, std::string_view text, std::string& out) const;
  void flush_byte_run(DecodeState& state, std::string& out) const;
  std::string replaced(std::string_view token) const;

  DecoderSpec spec_;
};

// The byte-level alphabet of GPT-2: every byte has a printable character.
// Character (UTF-8) of a byte.
const std::string& byte_level_character(unsigned char byte);
// The bytes a byte-level token stands for; a token with any other character stands for itself.
std::string byte_level_bytes(std::string_view token);

}  // namespace outrider
