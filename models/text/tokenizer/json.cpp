// Reads tokenizer.json and tokenizer_config.json into a TokenizerSpec: the model, the added tokens
// and the roles of special tokens. The pipeline stages are read in tokenizer/json_stages.cpp.
// Called once per load, on one thread; any input gives a spec or an Error, never a crash.
#include "models/text/tokenizer/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using json_reader::Json;
using json_reader::Place;

BpeSpec read_bpe(const Json& model, const Place& place) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_reader::string_or(model, key, "", place).empty()) {
      place.fail(std::string(key) + " is not supported");
    }
  }
  if (const Json* dropout = json_reader::find(model, "dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0) {
      place.fail("dropout is not supported");
    }
  }
  BpeSpec spec;
  if (json_reader::find(model, "unk_token") != nullptr) {
    spec.unk_token = json_reader::string_at(model, "unk_token", place);
  }
  spec.fuse_unk = json_reader::bool_or(model, "fuse_unk", false, place);
  spec.byte_fallback = json_reader::bool_or(model, "byte_fallback", false, place);
  spec.ignore_merges = json_reader::bool_or(model, "ignore_merges", false, place);
  const Json* vocab = json_reader::find(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) place.fail("vocab must be an object");
  spec.vocab.reserve(vocab->size());
  for (const auto& [piece, id] : vocab->items()) {
    spec.vocab.emplace_back(piece, json_reader::token_id_of(id, place.in("vocab")));
  }
  return spec;
}

UnigramSpec read_unigram(const Json& model, const Place& place) {
  UnigramSpec spec;
  const Json* vocab = json_reader::find(model, "vocab");
  if (vocab == nullptr || !vocab->is_array() || vocab->empty() || vocab->size() > kMaxTokenId)
    place.fail("the vocab of a Unigram must be an array of pieces");
  for (const Json& entry : *vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      place.fail("an entry of vocab must be a piece and its score");
    spec.vocab.emplace_back(entry[0].get<std::string>(), entry[1].get<double>());
  }
  if (const Json* id = json_reader::find(model, "unk_id")) {
    spec.unk_id = json_reader::token_id_of(*id, place.in("unk_id"));
    if (static_cast<size_t>(*spec.unk_id) >= spec.vocab.size())
      place.fail("unk_id is not in the vocabulary");
  }
  spec.byte_fallback = json_reader::bool_or(model, "byte_fallback", false, place);
  return spec;
}

// One merge, ["a", "b"] or "a b".
std::pair<std::string, std::string> read_merge(const Json& merge, const Place& place) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& line = merge.get_ref<const std::string&>();
    const size_t space = line.find(' ');
    if (space != std::string::npos && line.find(' ', space + 1) == std::string::npos) {
      return {line.substr(0, space), line.substr(space + 1)};
    }
  }
  place.fail("a merge must be \"a b\" or [\"a\", \"b\"]");
}

void read_merges(const Json& model, BpeSpec& spec, const Place& place) {
  const Json* merges = json_reader::find(model, "merges");
  if (merges == nullptr || !merges->is_array()) place.fail("merges must be an array");
  spec.merges.reserve(merges->size());
  for (const Json& merge : *merges) {
    // Old files carry the comment line of merges.txt; Hugging Face drops it too.
    const bool is_comment = merge.is_string() && spec.merges.empty() &&
                            merge.get_ref<const std::string&>().rfind("#version", 0) == 0;
    if (!is_comment) spec.merges.push_back(read_merge(merge, place.in("merges")));
  }
}

std::variant<BpeSpec, UnigramSpec> read_model(const Json& model, const Place& place) {
  const Json* vocab = json_reader::find(model, "vocab");
  const char* implied = vocab != nullptr && vocab->is_array() ? "Unigram" : "BPE";
  const std::string type = json_reader::string_or(model, "type", implied, place);
  if (type == "Unigram") return read_unigram(model, place);
  if (type != "BPE") {
    place.fail("model type \"" + json_reader::excerpt(type) +
               "\" is not supported, only BPE and Unigram are" +
               (type == "WordPiece" ? " (WordPiece is what BERT and its kin use)" : ""));
  }
  BpeSpec spec = read_bpe(model, place);
  read_merges(model, spec, place);
  return spec;
}

std::vector<AddedToken> read_added_tokens(const Json& root, const Place& place) {
  std::vector<AddedToken> tokens;
  const Json* list = json_reader::find(root, "added_tokens");
  if (list == nullptr) return tokens;
  if (!list->is_array()) place.fail("added_tokens must be an array");
  for (const Json& item : *list) {
    if (!item.is_object()) place.fail("an added token must be an object");
    const Json* id = json_reader::find(item, "id");
    if (id == nullptr) place.fail("an added token has no id");
    AddedToken token;
    token.id = json_reader::token_id_of(*id, place);
    token.content = json_reader::string_at(item, "content", place);
    token.single_word = json_reader::bool_or(item, "single_word", false, place);
    token.lstrip = json_reader::bool_or(item, "lstrip", false, place);
    token.rstrip = json_reader::bool_or(item, "rstrip", false, place);
    token.special = json_reader::bool_or(item, "special", false, place);
    token.normalized = json_reader::bool_or(item, "normalized", !token.special, place);
    if (token.content.size() > 1024) place.fail("an added token is longer than 1024 bytes");
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

using IdMap = std::unordered_map<std::string, int32_t>;

void check_unk_token(const BpeSpec& model, const Place& place) {
  const auto& unk = model.unk_token;
  if (unk && std::none_of(model.vocab.begin(), model.vocab.end(), [&](const auto& entry) {
        return entry.first == *unk;
      })) {
    place.fail("unk_token \"" + json_reader::excerpt(*unk) + "\" is not in the vocabulary");
  }
}

// Ids are unique, an added token that is also a vocabulary piece has its id; returns text -> id.
IdMap check_ids(const TokenizerSpec& spec, const Place& place) {
  IdMap ids;
  std::unordered_set<int32_t> used;
  spec.for_each_piece([&](const std::string& piece, int32_t id) {
    if (!used.insert(id).second) place.fail("two tokens have the id " + std::to_string(id));
    ids.insert_or_assign(piece, id);
  });
  for (const AddedToken& token : spec.added_tokens) {
    const auto known = ids.find(token.content);
    if (known == ids.end()) {
      if (!used.insert(token.id).second) {
        place.fail("two tokens have the id " + std::to_string(token.id));
      }
      ids.emplace(token.content, token.id);
    } else if (known->second != token.id) {
      place.fail("the added token \"" + json_reader::excerpt(token.content) + "\" has two ids, " +
                 std::to_string(known->second) + " and " + std::to_string(token.id));
    }
  }
  if (ids.empty()) place.fail("the vocabulary is empty");
  if (const auto* bpe = std::get_if<BpeSpec>(&spec.model)) check_unk_token(*bpe, place);
  return ids;
}

// "bos_token" and its kin are a string, an object with "content", or null.
std::optional<std::string> named_token(const Json& config, const char* key) {
  const Json* value = json_reader::find(config, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  const Json* content = json_reader::find(*value, "content");
  if (content == nullptr || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

constexpr std::string_view kUsualRoles[] = {"<s>", "</s>", "<unk>", "<pad>"};

std::vector<std::string> tokens_in_special_roles(const Json& config) {
  std::vector<std::string> names;
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"}) {
    if (const auto name = named_token(config, key)) names.push_back(*name);
  }
  const Json* more = json_reader::find(config, "additional_special_tokens");
  if (more != nullptr && more->is_array()) {
    for (const Json& item : *more) {
      if (item.is_string()) names.push_back(item.get<std::string>());
    }
  }
  return names;
}

std::optional<int32_t> first_known(const IdMap& ids, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = ids.find(name);
    if (found != ids.end()) return found->second;
  }
  return std::nullopt;
}

std::optional<int32_t> id_of_role(const Json& config, const char* key, const IdMap& ids) {
  const auto name = named_token(config, key);
  if (!name) return std::nullopt;
  const auto found = ids.find(*name);
  return found == ids.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

// transformers puts its own template in place of the file's post-processor for the Llama classes
// (bos yes, eos no, unless told) and wherever the configuration says add_bos_token or
// add_eos_token.
void apply_bos_eos_switches(const Json& config,
                            const IdMap& ids,
                            TokenizerSpec& spec,
                            const Place& place) {
  const std::string tokenizer_class = json_reader::string_or(config, "tokenizer_class", "", place);
  const bool is_llama =
      tokenizer_class == "LlamaTokenizer" || tokenizer_class == "LlamaTokenizerFast";
  const bool is_told = json_reader::find(config, "add_bos_token") != nullptr ||
                       json_reader::find(config, "add_eos_token") != nullptr;
  if (!is_llama && !is_told) return;
  // The classes' own defaults; null is none.
  if (is_llama && !config.contains("bos_token")) spec.bos_id = first_known(ids, {"<s>"});
  if (is_llama && !config.contains("eos_token")) spec.eos_id = first_known(ids, {"</s>"});
  const bool adds_bos = json_reader::bool_or(config, "add_bos_token", is_llama, place);
  if (!adds_bos || spec.bos_id) spec.prefix_ids.clear();
  if (adds_bos && spec.bos_id) spec.prefix_ids.push_back(*spec.bos_id);
  spec.suffix_ids.clear();
  if (json_reader::bool_or(config, "add_eos_token", false, place) && spec.eos_id) {
    spec.suffix_ids.push_back(*spec.eos_id);
  }
}

// As transformers: what the configuration names is special, whatever tokenizer.json says of it.
void set_special_roles(const std::vector<std::string>& names,
                       const IdMap& ids,
                       TokenizerSpec& spec) {
  for (AddedToken& token : spec.added_tokens) {
    token.special = token.special || std::ranges::count(names, token.content) > 0;
    token.control = token.special || std::ranges::count(kUsualRoles, token.content) > 0;
  }
  for (const std::string& name : names) {
    const auto found = ids.find(name);
    const auto is_it = [&](const AddedToken& token) { return token.content == name; };
    if (name.empty() || found == ids.end()) continue;
    if (std::ranges::any_of(spec.added_tokens, is_it)) continue;
    spec.added_tokens.push_back(
        {.id = found->second, .content = name, .special = true, .control = true});
  }
}

void apply_config(std::string_view config_json,
                  const IdMap& ids,
                  TokenizerSpec& spec,
                  const Place& place) {
  const Json config = config_json.empty() ? Json::object() : json_reader::parse(config_json, place);
  if (!config.is_object()) place.fail("the top level must be an object");
  set_special_roles(tokens_in_special_roles(config), ids, spec);
  spec.bos_id = id_of_role(config, "bos_token", ids);
  spec.eos_id = id_of_role(config, "eos_token", ids);
  if (config_json.empty()) {
    spec.bos_id = first_known(ids, {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"});
    spec.eos_id = first_known(ids, {"</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>"});
    return;
  }
  apply_bos_eos_switches(config, ids, spec, place);
}

}  // namespace

TokenizerSpec parse_tokenizer_spec(std::string_view tokenizer_json,
                                   std::string_view config_json,
                                   const std::string& origin) {
  const Place place{origin};
  const Json root = json_reader::parse(tokenizer_json, place);
  if (!root.is_object()) place.fail("the top level must be an object");
  const Json* model = json_reader::find(root, "model");
  if (model == nullptr || !model->is_object()) place.fail("model must be an object");
  TokenizerSpec spec;
  spec.model = read_model(*model, place.in("model"));
  spec.added_tokens = read_added_tokens(root, place);
  const IdMap ids = check_ids(spec, place);
  spec.normalizer = json_reader::read_normalizer(json_reader::find(root, "normalizer"), place);
  spec.pre_tokenizer =
      json_reader::read_pre_tokenizer(json_reader::find(root, "pre_tokenizer"), place);
  spec.decoder = json_reader::read_decoder(json_reader::find(root, "decoder"), place);
  json_reader::read_post_processor(json_reader::find(root, "post_processor"), spec, place);
  const size_t num_template_ids = spec.prefix_ids.size() + spec.suffix_ids.size();
  if (num_template_ids > 64) place.fail("the post-processor adds more than 64 tokens");
  apply_config(config_json, ids, spec, Place{origin + " (tokenizer_config.json)"});
  return spec;
}

}  // namespace outrider
