// Text to token ids and back, from a Hugging Face tokenizer.json (BPE or Unigram). Loaded once per
// process by the coordinator and the command line tools; immutable afterwards, so every HTTP and
// round thread may call it at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/text_span.h"

namespace outrider {

struct DecodeState;

struct EncodeOptions {
  // Apply the post-processor (bos, eos, ...) and, for Llama classes, add_bos_token.
  bool add_special_tokens = true;
  // Recognise special added tokens written out in the text.
  bool parse_special_tokens = true;
  // Byte ranges a user wrote, in any order: a special added token is never recognised where it
  // touches one of them, so no user can write a control token.
  std::span<const TextSpan> literal_spans = {};
};

class Tokenizer {
 public:
  // Reads model_dir/tokenizer.json and, when there, model_dir/tokenizer_config.json.
  // Throws Error with one sentence naming the file and what in it is wrong or not supported.
  static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& model_dir);

  // From the two JSON texts; an empty config text means there is none. `origin` names the source
  // in errors.
  static std::shared_ptr<const Tokenizer> from_json(std::string_view tokenizer_json,
                                                    std::string_view config_json = {},
                                                    const std::string& origin = "tokenizer.json");

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ids of the text. Bytes that are not UTF-8 are first replaced by U+FFFD, one per maximal
  // invalid prefix, as Python's errors="replace" does before Hugging Face sees the text.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Text of the ids; valid UTF-8, bytes that form no character become U+FFFD. Ids that name no
  // token (vocabulary padding) add nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  // The bytes the token stands for in the middle of a text, perhaps a part of a UTF-8 character;
  // for a special token its own text. Empty for an id that names no token. The leading space that
  // decode() drops from the start of a SentencePiece-style text is kept here.
  std::string token_bytes(int32_t id) const;

  // Vocabulary form ("Ġthe", "▁the", "<0x0A>"); empty for an id that names no token.
  std::string token_text(int32_t id) const;

  // Id of a vocabulary form or added token.
  std::optional<int32_t> token_id(std::string_view token_text) const;

  bool is_special(int32_t id) const;

  // Largest id + 1. The model's embedding may have more rows (padding).
  int32_t vocab_size() const;

  // From bos_token and eos_token of tokenizer_config.json, else from well-known special tokens
  // ("<s>", "</s>", "<|endoftext|>", ...) among the added tokens.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

 private:
  friend class StreamingDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::string_view text_of(int32_t id) const;
  // One step and the end of decode(); the streaming decoder runs on the same two.
  void push_token(DecodeState& state, int32_t id, bool skip_special_tokens, std::string& out) const;
  void flush_tokens(DecodeState& state, std::string& out) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
