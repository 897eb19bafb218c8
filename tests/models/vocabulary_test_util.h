// Small tokenizers for the tests of vocabularies: byte level and SentencePiece style, from a list
// of tokens.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/text/tokenizer.h"

namespace outrider::test {

// Added tokens come first and are special. No merges: a text becomes single characters, or its
// bytes.
inline std::shared_ptr<const Tokenizer> with_tokens(nlohmann::json spec,
                                                    const std::vector<std::string>& special,
                                                    const std::vector<std::string>& tokens,
                                                    const nlohmann::json& config) {
  spec["added_tokens"] = spec["model"]["merges"] = nlohmann::json::array();
  nlohmann::json& vocab = spec["model"]["vocab"] = nlohmann::json::object();
  int32_t id = 0;
  for (const std::string& token : special) {
    spec["added_tokens"].push_back({{"id", id}, {"content", token}, {"special", true}});
    vocab[token] = id++;
  }
  for (const std::string& token : tokens) vocab[token] = id++;
  return Tokenizer::from_json(spec.dump(), config.is_null() ? "" : config.dump());
}

inline std::shared_ptr<const Tokenizer> byte_level(const std::vector<std::string>& special,
                                                   const std::vector<std::string>& tokens,
                                                   const nlohmann::json& config = {}) {
  nlohmann::json spec = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                         {"decoder", {{"type", "ByteLevel"}}},
                         {"model", {{"type", "BPE"}}}};
  return with_tokens(std::move(spec), special, tokens, config);
}

inline std::shared_ptr<const Tokenizer> sentence_piece(const std::vector<std::string>& special,
                                                       const std::vector<std::string>& tokens,
                                                       const nlohmann::json& config = {}) {
  nlohmann::json spec = {
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"pre_tokenizer", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"fuse_unk", true}}}};
  return with_tokens(std::move(spec), special, tokens, config);
}

// "<0x00>" to "<0xFF>".
inline std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  return tokens;
}

}  // namespace outrider::test
