// A tokenizer for models that never saw text: Llama-2's kind (SentencePiece-style BPE with byte
// fallback) of exactly the vocabulary a shape has, with made-up words. Used by `synth`. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace outrider {

inline constexpr int32_t kSyntheticBosId = 1;
inline constexpr int32_t kSyntheticEosId = 2;

// Ids 0..2: <unk> <s> </s>; 3..258: <0x00>..<0xFF>; then the space mark and the printable ASCII
// characters; then words of syllables (consonant + vowel), in the order in which they are merged.
// Any text can be encoded and comes back.
struct SyntheticTokenizer {
  std::string tokenizer_json;         // Hugging Face
  std::string tokenizer_config_json;  // with a chat template
  std::string tokenizer_model;        // the same tokens as a SentencePiece model, for converters
};
// Throws Error when vocab_size is too small for the characters, or larger than there are words.
SyntheticTokenizer make_synthetic_tokenizer(int32_t vocab_size, int32_t max_positions);

}  // namespace outrider
