// tokenizer.json and tokenizer_config.json of a GGUF file; see gguf_documents.h. Two kinds: "gpt2"
// (byte-level BPE whose text is cut first, by a rule that llama.cpp knows by name) and "llama"
// (SentencePiece BPE, whose merges follow from the scores).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "models/gguf/gguf_documents.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

enum TokenType : int { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// How a rule cuts a text, as the tokenizer.json of the models that llama.cpp names it after.
struct CutRule {
  std::string_view names;  // of tokenizer.ggml.pre, each between spaces
  const char* pattern;     // null: ByteLevel's own
  bool single_digits = false;
  bool is_nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;               // where the metadata do not say it
  const char* first_patterns[3] = {};  // by which texts are cut before
  bool triples = false;                // Falcon's: punctuation first, digits by three last
};

#define OUTRIDER_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define OUTRIDER_END "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OUTRIDER_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define OUTRIDER_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define OUTRIDER_LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define OUTRIDER_OTHERS " ?[^\\s\\p{L}\\p{N}]+"
#define OUTRIDER_CL100K \
  OUTRIDER_CONTRACTIONS \
  "|" OUTRIDER_LETTERS "|\\p{N}{1,3}|" OUTRIDER_OTHERS "[\\r\\n]*|" OUTRIDER_END

constexpr CutRule kCutRules[] = {
    {.names =
         " default gpt-2 olmo phi-2 jina-es jina-de mpt mellum gigachat a.x-4.0 exaone4 trillion "
         "granite-docling ",
     .pattern = nullptr},
    {.names = " smollm codeshell starcoder refact command-r minerva-7b mellum2 ",
     .pattern = nullptr,
     .single_digits = true},
    {.names = " llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .pattern = OUTRIDER_CL100K,
     .ignore_merges = true,
     .adds_bos = true},
    {.names = " dbrx smaug-bpe glm4 ", .pattern = OUTRIDER_CL100K, .ignore_merges = true},
    {.names = " kimi-k2 ",
     .pattern =
         R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {.names = " falcon ", .pattern = nullptr, .triples = true},
    {.names = " chatglm-bpe ", .pattern = OUTRIDER_CL100K},
    {.names = " stablelm2 ",
     .pattern = OUTRIDER_CONTRACTIONS "|" OUTRIDER_LETTERS "|\\p{N}|" OUTRIDER_OTHERS
                                      "[\\r\\n]*|" OUTRIDER_END},
    {.names = " deepseek-v3 ",
     .pattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
                "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" OUTRIDER_END,
     .first_patterns = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"}},
    {.names = " deepseek-coder ",
     .pattern = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
     .single_digits = true,
     .first_patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+"}},
    {.names = " qwen2 deepseek-r1-qwen kormo megrez ",
     .pattern = OUTRIDER_CONTRACTIONS "|" OUTRIDER_LETTERS "|\\p{N}|" OUTRIDER_OTHERS
                                      "[\\r\\n]*|" OUTRIDER_END,
     .is_nfc = true},
    {.names = " tekken ",
     .pattern = "[^\\r\\n\\p{L}\\p{N}]?" OUTRIDER_UPPER "*" OUTRIDER_LOWER
                "+|[^\\r\\n\\p{L}\\p{N}]?" OUTRIDER_UPPER "+" OUTRIDER_LOWER
                "*|\\p{N}|" OUTRIDER_OTHERS "[\\r\\n/]*|" OUTRIDER_END,
     .ignore_merges = true,
     .adds_bos = true},
    {.names = " gpt-4o llama4 kanana2 minimax-m2 ",
     .pattern =
         "[^\\r\\n\\p{L}\\p{N}]?" OUTRIDER_UPPER "*" OUTRIDER_LOWER "+" OUTRIDER_CONTRACTIONS
         "?|[^\\r\\n\\p{L}\\p{N}]?" OUTRIDER_UPPER "+" OUTRIDER_LOWER "*" OUTRIDER_CONTRACTIONS
         "?|\\p{N}{1,3}|" OUTRIDER_OTHERS "[\\r\\n/]*|" OUTRIDER_END},
};

struct Vocabulary {
  const std::vector<std::string>& tokens;
  std::vector<int> types;

  const std::string* text(const int64_t* id) const {
    const bool is_there = id != nullptr && *id >= 0 && static_cast<size_t>(*id) < tokens.size();
    return is_there ? &tokens[static_cast<size_t>(*id)] : nullptr;
  }
};

template <typename T>
const T& required(const GgufFile& file, const char* key) {
  const T* value = file.find<T>(key);
  if (value == nullptr) throw Error(fmt::format("{}: '{}' is missing", file.name(), key));
  return *value;
}

Vocabulary vocabulary_of(const GgufFile& file) {
  Vocabulary vocabulary{required<std::vector<std::string>>(file, "tokenizer.ggml.tokens"), {}};
  vocabulary.types.assign(vocabulary.tokens.size(), kNormal);
  const auto* types = file.find<std::vector<double>>("tokenizer.ggml.token_type");
  if (types == nullptr) return vocabulary;
  if (types->size() != vocabulary.tokens.size())
    throw Error(file.name() + ": 'tokenizer.ggml.token_type' and '...tokens' differ in length");
  for (size_t id = 0; id < types->size(); ++id)  // what is no number is no type
    vocabulary.types[id] = (*types)[id] > 0 ? static_cast<int>(std::min((*types)[id], 7.0)) : 0;
  return vocabulary;
}

const CutRule& cut_rule(const GgufFile& file) {
  const std::string& name = required<std::string>(file, "tokenizer.ggml.pre");
  for (const CutRule& rule : kCutRules)
    if (rule.names.find(" " + name + " ") != std::string_view::npos) return rule;
  throw Error(fmt::format(
      "{}: the pre-tokenizer '{}' (tokenizer.ggml.pre) is not known", file.name(), name));
}

Json pre_tokenizer_of(const CutRule& rule) {
  Json steps = Json::array();
  const auto split = [](const char* pattern) {
    return Json{{"type", "Split"},
                {"pattern", {{"Regex", pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  if (rule.triples) steps.push_back({{"type", "Punctuation"}, {"behavior", "Contiguous"}});
  if (rule.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const char* pattern : rule.first_patterns)
    if (pattern != nullptr) steps.push_back(split(pattern));
  if (rule.pattern != nullptr) steps.push_back(split(rule.pattern));
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", rule.pattern == nullptr}});
  if (rule.triples) {
    steps.push_back({{"type", "Digits"}, {"individual_digits", false}});
    steps.push_back(split("[0-9][0-9][0-9]"));
  }
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

// Phi 3's tokens of a chat take the white space behind them, which the file does not say; as
// llama.cpp has it.
bool strips_right(const GgufFile& file, const std::string& token, int type) {
  const std::string* architecture = file.find<std::string>("general.architecture");
  if (architecture == nullptr || *architecture != "phi3") return false;
  if (required<std::string>(file, "tokenizer.ggml.model") != "llama") return false;
  if (token == "<unk>" || token == "<s>" || token == "<|endoftext|>") return false;
  return type == kControl || token == "</s>";
}

// Tokens that are found in a text before it is cut.
Json added_tokens(const GgufFile& file, const Vocabulary& vocabulary) {
  Json added = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int type = vocabulary.types[id];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", strips_right(file, vocabulary.tokens[id], type)},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  return added;
}

// Unused ones, which pad the embedding, are no tokens.
Json vocabulary_json(const GgufFile& file, const Vocabulary& vocabulary) {
  Json ids = Json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == kUnused) continue;
    if (!ids.emplace(vocabulary.tokens[id], id).second)
      throw Error(
          fmt::format("{}: a token of 'tokenizer.ggml.tokens' is there twice, the second "
                      "time as {}",
                      file.name(),
                      id));
  }
  return ids;
}

// Every way to make a token of two others, best scores first: what SentencePiece does step by step.
Json merges_by_score(const GgufFile& file, const Vocabulary& vocabulary) {
  constexpr size_t kLongestToken = 256;
  const auto& scores = required<std::vector<double>>(file, "tokenizer.ggml.scores");
  if (scores.size() != vocabulary.tokens.size())
    throw Error(file.name() + ": 'tokenizer.ggml.scores' and '...tokens' differ in length");
  if (std::ranges::any_of(scores, [](double score) { return std::isnan(score); }))
    throw Error(file.name() + ": 'tokenizer.ggml.scores' holds something that is no number");
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
    if (vocabulary.types[id] == kNormal) ids.emplace(vocabulary.tokens[id], id);
  std::vector<std::tuple<double, size_t, size_t>> merges;  // score negated; left, right
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (vocabulary.types[id] != kNormal || token.size() > kLongestToken) continue;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = ids.find(token.substr(cut));
      if (left != ids.end() && right != ids.end())
        merges.emplace_back(-scores[id], left->second, right->second);
    }
  }
  std::sort(merges.begin(), merges.end());
  Json pairs = Json::array();
  for (const auto& [score, left, right] : merges)
    pairs.push_back({vocabulary.tokens[left], vocabulary.tokens[right]});
  return pairs;
}

Json merges_listed(const GgufFile& file) {
  Json pairs = Json::array();
  for (const std::string& merge :
       required<std::vector<std::string>>(file, "tokenizer.ggml.merges")) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos)
      throw Error(file.name() + ": 'tokenizer.ggml.merges' holds something that is no pair");
    pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return pairs;
}

bool flag(const GgufFile& file, const char* key, bool otherwise) {
  const bool* value = file.find<bool>(key);
  return value != nullptr ? *value : otherwise;
}

// The tokens that stand before and behind a text.
Json post_processor(const GgufFile& file, const Vocabulary& vocabulary, bool adds_bos) {
  const auto sequence = [](const char* name) {
    return Json{{"Sequence", {{"id", name}, {"type_id", 0}}}};
  };
  Json single = Json::array();
  Json tokens = Json::object();
  const auto add = [&](const char* key) {
    const int64_t* id = file.find<int64_t>(key);
    const std::string* text = vocabulary.text(id);
    if (text == nullptr) return;
    single.push_back({{"SpecialToken", {{"id", *text}, {"type_id", 0}}}});
    tokens[*text] = {{"id", *text}, {"ids", {*id}}, {"tokens", {*text}}};
  };
  if (flag(file, "tokenizer.ggml.add_bos_token", adds_bos)) add("tokenizer.ggml.bos_token_id");
  single.push_back(sequence("A"));
  if (flag(file, "tokenizer.ggml.add_eos_token", false)) add("tokenizer.ggml.eos_token_id");
  Json pair = single;
  pair.push_back(sequence("B"));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

Json byte_level_parts(const GgufFile& file, const Vocabulary& vocabulary) {
  const CutRule& rule = cut_rule(file);
  return {{"normalizer", rule.is_nfc ? Json{{"type", "NFC"}} : Json()},
          {"pre_tokenizer", pre_tokenizer_of(rule)},
          {"post_processor", post_processor(file, vocabulary, rule.adds_bos)},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", rule.ignore_merges},
            {"vocab", vocabulary_json(file, vocabulary)},
            {"merges", merges_listed(file)}}}};
}

Json sentencepiece_parts(const GgufFile& file, const Vocabulary& vocabulary) {
  constexpr const char* kSpace = "\u2581";
  const bool has_prefix = flag(file, "tokenizer.ggml.add_space_prefix", true);
  const auto replace = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json normalizers = Json::array({replace(" ", kSpace)});
  Json decoders = {replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (has_prefix) {
    normalizers.insert(normalizers.begin(), Json{{"type", "Prepend"}, {"prepend", kSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  const std::string* unknown =
      vocabulary.text(file.find<int64_t>("tokenizer.ggml.unknown_token_id"));
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", post_processor(file, vocabulary, true)},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", unknown != nullptr ? Json(*unknown) : Json()},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"ignore_merges", false},
            {"vocab", vocabulary_json(file, vocabulary)},
            {"merges", merges_by_score(file, vocabulary)}}}};
}

std::string dumped(const GgufFile& file, const Json& json) {
  try {
    return json.dump();
  } catch (const Json::type_error&) {
    throw Error(file.name() + ": a text of the tokenizer is not UTF-8");
  }
}

}  // namespace

std::string gguf_tokenizer_json(const GgufFile& file) {
  const auto& kind = required<std::string>(file, "tokenizer.ggml.model");
  const Vocabulary vocabulary = vocabulary_of(file);
  Json json;
  if (kind == "gpt2") {
    json = byte_level_parts(file, vocabulary);
  } else if (kind == "llama") {
    json = sentencepiece_parts(file, vocabulary);
  } else {
    throw Error(
        fmt::format("{}: the tokenizer '{}' is not supported in GGUF; known are gpt2 and llama",
                    file.name(),
                    kind));
  }
  json["version"] = "1.0";
  json["truncation"] = json["padding"] = nullptr;
  json["added_tokens"] = added_tokens(file, vocabulary);
  return dumped(file, json);
}

std::string gguf_tokenizer_config_json(const GgufFile& file) {
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  const Vocabulary vocabulary = vocabulary_of(file);
  Json config = Json::object();
  for (const auto& [key, name] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token"},
                                  {"tokenizer.ggml.eos_token_id", "eos_token"},
                                  {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                  {"tokenizer.ggml.padding_token_id", "pad_token"}}) {
    const std::string* text = vocabulary.text(file.find<int64_t>(key));
    if (text != nullptr) config[name] = *text;
  }
  Json templates = Json::array();
  for (const auto& [key, value] : file.metadata()) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || !key.starts_with(kTemplate)) continue;
    const bool is_default = key.size() == kTemplate.size();
    if (!is_default && key[kTemplate.size()] != '.') continue;
    templates.push_back(
        {{"name", is_default ? "default" : key.substr(kTemplate.size() + 1)}, {"template", *text}});
  }
  if (!templates.empty()) config["chat_template"] = templates;
  return dumped(file, config);
}

}  // namespace outrider
