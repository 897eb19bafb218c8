// See vocabulary.h.
#include "models/gguf/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "models/checkpoint/checked_json.h"
#include "models/text/tokenizer/spec.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

struct Source {
  std::string origin;
  TokenizerSpec spec;
  Json config = Json::object();  // tokenizer_config.json
};

Source read_source(const std::filesystem::path& model_dir) {
  Source source;
  const auto path = model_dir / "tokenizer.json";
  const auto config_path = model_dir / "tokenizer_config.json";
  source.origin = path.string();
  std::string config_text;
  if (is_there(config_path)) {
    config_text = read_json_file(config_path, {.max_bytes = kMaxTokenizerBytes, .max_depth = 32});
    source.config = Json::parse(config_text);
  }
  source.spec =
      parse_tokenizer_spec(read_regular_file(path, kMaxTokenizerBytes), config_text, source.origin);
  return source;
}

// The way a byte-level tokenizer cuts words, by llama.cpp's name; none when it has no name there.
std::optional<std::string> word_rule_of(const TokenizerSpec& spec) {
  constexpr std::string_view kLlama3 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  constexpr std::string_view kQwen2 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  using Kind = PreTokenizerStep::Kind;
  const std::vector<PreTokenizerStep>& steps = spec.pre_tokenizer;
  if (steps.empty() || steps.back().kind != Kind::kByteLevel || steps.back().add_prefix_space) {
    return std::nullopt;
  }
  const bool cuts_itself = steps.back().use_regex;
  if (steps.size() == 1 && cuts_itself) return "gpt-2";
  if (steps.size() != 2) return std::nullopt;
  const PreTokenizerStep& first = steps[0];
  if (first.kind == Kind::kDigits && first.individual_digits && cuts_itself) return "smollm";
  if (first.kind != Kind::kSplit || first.behavior != SplitBehavior::kIsolated || first.invert ||
      cuts_itself) {
    return std::nullopt;
  }
  if (first.pattern.text == kQwen2) return "qwen2";
  if (first.pattern.text == kLlama3) return spec.model.ignore_merges ? "llama-bpe" : "smaug-bpe";
  return std::nullopt;
}

// The mark of a space before the first word.
bool adds_space(const TokenizerSpec& spec) {
  for (const NormalizerStep& step : spec.normalizer) {
    if (step.kind == NormalizerStep::Kind::kPrepend) return true;
  }
  for (const PreTokenizerStep& step : spec.pre_tokenizer) {
    if (step.kind == PreTokenizerStep::Kind::kMetaspace) {
      return step.prepend_scheme != PrependScheme::kNever;
    }
  }
  return false;
}

bool is_byte_token(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.starts_with("<0x") && is_hex(text[3]) && is_hex(text[4]) &&
         text[5] == '>';
}

std::string with_spaces(std::string text) {
  for (size_t at = 0; (at = text.find(kSpaceMark, at)) != std::string::npos; ++at) {
    text.replace(at, kSpaceMark.size(), " ");
  }
  return text;
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;
};

// By id; rows of the embedding without a token become unused ones.
Tokens list_tokens(const Source& source, int32_t vocab_size) {
  const TokenizerSpec& spec = source.spec;
  Tokens tokens;
  const auto size = static_cast<size_t>(vocab_size);
  tokens.texts.resize(size);
  tokens.types.assign(size, kUnused);
  const auto place = [&](int32_t id, const std::string& text, int32_t type) {
    if (id >= vocab_size) {
      throw Error(fmt::format(
          "{}: token {} has no row in a vocabulary of {}", source.origin, id, vocab_size));
    }
    tokens.texts[static_cast<size_t>(id)] = text;
    tokens.types[static_cast<size_t>(id)] = type;
  };
  for (const auto& [text, id] : spec.model.vocab) {
    const bool is_unknown = spec.model.unk_token && *spec.model.unk_token == text;
    const bool is_byte = spec.model.byte_fallback && is_byte_token(text);
    place(id, text, is_unknown ? kUnknown : is_byte ? kByte : kNormal);
  }
  for (const AddedToken& token : spec.added_tokens) {
    const bool is_unknown = spec.model.unk_token && *spec.model.unk_token == token.content;
    if (is_unknown && spec.model.byte_fallback) continue;
    place(token.id,
          token.control ? token.content : with_spaces(token.content),
          token.control ? kControl : kUserDefined);
  }
  for (size_t id = 0; id < size; ++id) {
    if (tokens.types[id] == kUnused) tokens.texts[id] = fmt::format("[PAD{}]", id);
  }
  return tokens;
}

// SentencePiece merges the pair whose piece has the highest score: minus the rank of the merge that
// makes it. Single characters are not made by a merge; theirs come after all.
void score_by_merges(const TokenizerSpec& spec, Tokens& tokens) {
  std::vector<std::pair<std::string_view, size_t>> ids;
  for (size_t id = 0; id < tokens.texts.size(); ++id) ids.emplace_back(tokens.texts[id], id);
  std::sort(ids.begin(), ids.end());
  tokens.scores.assign(tokens.texts.size(), 0.0f);
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.types[id] == kNormal) {
      tokens.scores[id] = -static_cast<float>(spec.model.merges.size() + id);
    }
  }
  for (size_t rank = spec.model.merges.size(); rank-- > 0;) {  // the first of a piece wins
    const auto& [left, right] = spec.model.merges[rank];
    const std::string text = left + right;
    const auto found = std::lower_bound(
        ids.begin(), ids.end(), std::pair<std::string_view, size_t>(text, size_t{0}));
    if (found == ids.end() || found->first != text) continue;
    if (tokens.types[found->second] == kNormal) {
      tokens.scores[found->second] = -static_cast<float>(rank);
    }
  }
}

std::optional<std::string> template_of(const std::filesystem::path& model_dir, const Json& config) {
  const auto file = model_dir / "chat_template.jinja";
  if (is_there(file)) return read_regular_file(file, kMaxTemplateBytes);
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const Json& entry : *found) {
    if (!entry.is_object() || entry.value("name", "") != "default") continue;
    const auto text = entry.find("template");
    if (text != entry.end() && text->is_string()) return text->get<std::string>();
  }
  return std::nullopt;
}

void add_special_ids(const Source& source, const ModelConfig& config, GgufMetadata& metadata) {
  const TokenizerSpec& spec = source.spec;
  std::optional<int32_t> bos = spec.bos_id;
  std::optional<int32_t> eos = spec.eos_id;
  if (!bos && config.bos_token_id >= 0) bos = config.bos_token_id;
  if (!eos && !config.eos_token_ids.empty()) eos = config.eos_token_ids.front();
  const auto add = [&metadata](const char* key, std::optional<int32_t> id) {
    if (id) metadata.add(key, static_cast<uint32_t>(*id));
  };
  const auto contains = [](const std::vector<int32_t>& ids, std::optional<int32_t> id) {
    return id && std::find(ids.begin(), ids.end(), *id) != ids.end();
  };
  add("tokenizer.ggml.bos_token_id", bos);
  add("tokenizer.ggml.eos_token_id", eos);
  for (const auto& [text, id] : spec.model.vocab) {
    if (spec.model.unk_token && *spec.model.unk_token == text) {
      add("tokenizer.ggml.unknown_token_id", id);
    }
  }
  metadata.add("tokenizer.ggml.add_bos_token", contains(spec.prefix_ids, bos));
  metadata.add("tokenizer.ggml.add_eos_token", contains(spec.suffix_ids, eos));
}

std::vector<std::string> merge_lines(const TokenizerSpec& spec) {
  std::vector<std::string> lines;
  lines.reserve(spec.model.merges.size());
  for (const auto& [left, right] : spec.model.merges) lines.push_back(left + " " + right);
  return lines;
}

}  // namespace

void add_gguf_vocabulary(const std::filesystem::path& model_dir,
                         const ModelConfig& config,
                         GgufMetadata& metadata) {
  const Source source = read_source(model_dir);
  Tokens tokens = list_tokens(source, config.vocab_size);
  const std::optional<std::string> word_rule = word_rule_of(source.spec);
  const bool is_sentence_piece = source.spec.model.byte_fallback && !word_rule;
  if (!word_rule && !is_sentence_piece) {
    throw Error(fmt::format(
        "{}: this way to cut words has no name in GGUF; known are SentencePiece-style BPE with "
        "byte fallback, and the byte-level ones of gpt-2, smollm, qwen2 and llama 3",
        source.origin));
  }
  metadata.add("tokenizer.ggml.model", is_sentence_piece ? "llama" : "gpt2");
  metadata.add("tokenizer.ggml.pre", is_sentence_piece ? "default" : word_rule->c_str());
  if (is_sentence_piece) score_by_merges(source.spec, tokens);
  metadata.add("tokenizer.ggml.tokens", tokens.texts);
  if (is_sentence_piece) metadata.add("tokenizer.ggml.scores", tokens.scores);
  metadata.add("tokenizer.ggml.token_type", tokens.types);
  if (is_sentence_piece) {
    metadata.add("tokenizer.ggml.add_space_prefix", adds_space(source.spec));
  } else {
    metadata.add("tokenizer.ggml.merges", merge_lines(source.spec));
  }
  add_special_ids(source, config, metadata);
  if (const auto chat_template = template_of(model_dir, source.config)) {
    metadata.add("tokenizer.chat_template", std::string_view(*chat_template));
  }
}

}  // namespace outrider
