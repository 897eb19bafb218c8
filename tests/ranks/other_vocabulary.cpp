// See other_vocabulary.h.
#include "tests/ranks/other_vocabulary.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "runtime/ranks/loading/model_names.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

using Json = nlohmann::json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Old id -> new id.
std::vector<int32_t> new_ids(size_t size, bool keep) {
  std::vector<int32_t> ids(size);
  std::iota(ids.begin(), ids.end(), 0);
  if (keep) return ids;
  std::mt19937 random(1);
  for (size_t i = size - 1; i > 0; --i) std::swap(ids[i], ids[random() % (i + 1)]);
  return ids;
}

std::map<std::string, std::string> new_texts(const Json& spec,
                                             const OtherVocabulary::Options& options) {
  std::set<std::string> added;
  for (const Json& token : spec["added_tokens"]) added.insert(token["content"]);
  std::map<std::string, std::string> texts;
  for (const auto& [text, id] : spec["model"]["vocab"].items()) {
    const bool is_character = text.size() == 1 || (text.size() == 2 && (text[0] & 0x80) != 0);
    const bool renamed = options.rename_every > 0 && !is_character && !added.contains(text) &&
                         id.get<int>() % options.rename_every == 0;
    texts[text] = renamed ? "~~" + std::to_string(id.get<int>()) : text;
  }
  if (options.rename_end) texts["<|endoftext|>"] = "<eos>";
  return texts;
}

// Merges that no longer make sense go.
Json new_tokenizer(Json spec,
                   const std::vector<int32_t>& new_id,
                   const std::map<std::string, std::string>& texts) {
  const Json old_vocab = spec["model"]["vocab"];
  Json vocab = Json::object();
  for (const auto& [text, id] : old_vocab.items()) vocab[texts.at(text)] = new_id[id.get<size_t>()];
  spec["model"]["vocab"] = vocab;
  Json merges = Json::array();
  for (const Json& merge : spec["model"]["merges"]) {
    const std::string left = merge[0];
    const std::string right = merge[1];
    if (vocab.contains(left) && vocab.contains(right) && vocab.contains(left + right))
      merges.push_back(merge);
  }
  spec["model"]["merges"] = merges;
  for (Json& token : spec["added_tokens"]) {
    token["content"] = texts.at(token["content"]);
    token["id"] = vocab.at(token["content"].get<std::string>());
  }
  return spec;
}

// The embedding's rows (the head is tied) in their new order, then rows of zeros, or fewer.
std::string new_weights(const std::string& bytes,
                        const std::vector<int32_t>& new_id,
                        int num_extra_rows) {
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  Json header = Json::parse(bytes.substr(8, header_size));
  const std::string data = bytes.substr(8 + header_size);
  Json& embedding = header["model.embed_tokens.weight"];
  const size_t begin = embedding["data_offsets"][0];
  const size_t end = embedding["data_offsets"][1];
  const size_t row_bytes = (end - begin) / new_id.size();
  std::string rows(end - begin, '\0');
  for (size_t id = 0; id < new_id.size(); ++id)
    data.copy(rows.data() + static_cast<size_t>(new_id[id]) * row_bytes,
              row_bytes,
              begin + id * row_bytes);
  const size_t num_rows = new_id.size() + static_cast<size_t>(num_extra_rows);
  rows.resize(num_rows * row_bytes);
  embedding["shape"][0] = num_rows;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    for (Json& offset : tensor["data_offsets"]) {
      if (offset >= end) offset = offset.get<size_t>() - end + begin + rows.size();
    }
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  header_size = text.size();
  std::string out(sizeof header_size, '\0');
  std::memcpy(out.data(), &header_size, sizeof header_size);
  return out + text + data.substr(0, begin) + rows + data.substr(end);
}

}  // namespace

OtherVocabulary::OtherVocabulary(const Options& options) {
  static std::atomic<int> counter{0};
  folder_ = std::filesystem::temp_directory_path() /
            ("outrider-draft-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
  std::filesystem::create_directories(folder_);
  const std::filesystem::path source = model_folder("embedded", Role::kDraft);
  const Json spec = Json::parse(read_file(source / "tokenizer.json"));
  const auto texts = new_texts(spec, options);
  const std::vector<int32_t> new_id =
      new_ids(spec["model"]["vocab"].size(), options.num_extra_rows < 0);
  write_file(folder_ / "tokenizer.json", new_tokenizer(spec, new_id, texts).dump());
  const std::string end = texts.at("<|endoftext|>");
  write_file(folder_ / "tokenizer_config.json",
             Json{{"bos_token", end}, {"eos_token", end}, {"add_bos_token", false}}.dump());
  Json config = Json::parse(read_file(source / "config.json"));
  config["vocab_size"] = new_id.size() + static_cast<size_t>(options.num_extra_rows);
  config["bos_token_id"] = config["eos_token_id"] = config["pad_token_id"] = new_id[0];
  write_file(folder_ / "config.json", config.dump());
  write_file(folder_ / "model.safetensors",
             new_weights(read_file(source / "model.safetensors"), new_id, options.num_extra_rows));
}

OtherVocabulary::~OtherVocabulary() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

RunConfig OtherVocabulary::config(int num_targets, int draft_len) const {
  RunConfig config = embedded_config(num_targets, draft_len);
  if (draft_len == 0) return config;
  config.speculative.model = folder();
  config.speculative.use_heterogeneous_vocab = true;
  return config;
}

}  // namespace outrider::test
