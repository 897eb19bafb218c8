// GGUF files read back by a reader of the test's own: tensors as llama.cpp's converter makes them
// (golden hashes, every type and family), key-values, alignment, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <variant>

#include "models/gguf/export.h"
#include "models/gguf/vocabulary.h"
#include "runtime/base/error.h"
#include "runtime/ops/half.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;
using Json = nlohmann::json;
using Value = std::variant<uint32_t,
                           float,
                           bool,
                           std::string,
                           std::vector<std::string>,
                           std::vector<float>,
                           std::vector<int32_t>>;

struct ReadTensor {
  std::vector<uint64_t> shape;
  uint32_t type = 0;
  uint64_t offset = 0;
  std::string bytes;
};

// Throws std::out_of_range where the file ends early.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {
    EXPECT_EQ(take(4), "GGUF");
    EXPECT_EQ(number<uint32_t>(), 3u);
    const auto num_tensors = number<uint64_t>();
    const auto num_values = number<uint64_t>();
    for (uint64_t i = 0; i < num_values; ++i) {
      const std::string key = text();
      EXPECT_TRUE(values.emplace(key, value(number<uint32_t>())).second) << key;
    }
    std::vector<std::string> names;
    for (uint64_t i = 0; i < num_tensors; ++i) {
      names.push_back(text());
      ReadTensor& tensor = tensors[names.back()];
      tensor.shape.resize(number<uint32_t>());
      for (uint64_t& size : tensor.shape) size = number<uint64_t>();
      tensor.type = number<uint32_t>();
      tensor.offset = number<uint64_t>();
      EXPECT_EQ(tensor.offset % 32, 0u);
    }
    const size_t data = (at_ + 31) / 32 * 32;
    size_t end = data;
    for (const std::string& name : names) {
      ReadTensor& tensor = tensors[name];
      uint64_t bytes = 1;
      for (const uint64_t size : tensor.shape) bytes *= size;
      bytes = tensor.type == 0 ? 4 * bytes : tensor.type == 8 ? bytes / 32 * 34 : 2 * bytes;
      EXPECT_EQ(data + tensor.offset, end) << name;
      at_ = data + tensor.offset;
      tensor.bytes = take(bytes);
      end = (at_ + 31) / 32 * 32;
    }
    EXPECT_EQ(end, file_.size());
  }

  template <typename T>
  T get(const std::string& key) const {
    return std::get<T>(values.at(key));
  }

  std::map<std::string, Value> values;
  std::map<std::string, ReadTensor> tensors;

 private:
  std::string take(size_t size) {
    if (size > file_.size() - at_) throw std::out_of_range("the file ends early");
    at_ += size;
    return file_.substr(at_ - size, size);
  }
  template <typename T>
  T number() {
    T out;
    std::memcpy(&out, take(sizeof(out)).data(), sizeof(out));
    return out;
  }
  std::string text() { return take(number<uint64_t>()); }
  Value value(uint32_t type) {
    if (type == 4) return number<uint32_t>();
    if (type == 6) return number<float>();
    if (type == 7) return number<uint8_t>() != 0;
    if (type == 8) return text();
    EXPECT_EQ(type, 9u);
    const auto inner = number<uint32_t>();
    const auto size = number<uint64_t>();
    std::vector<std::string> texts;
    std::vector<float> floats;
    std::vector<int32_t> integers;
    for (uint64_t i = 0; i < size; ++i) {
      if (inner == 8) texts.push_back(text());
      if (inner == 6) floats.push_back(number<float>());
      if (inner == 5) integers.push_back(number<int32_t>());
    }
    if (inner == 8) return texts;
    if (inner == 6) return floats;
    return integers;
  }

  std::string file_;
  size_t at_ = 0;
};

std::string fnv1a64(const std::string& bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return fmt::format("{:016x}", hash);
}

// Three special tokens and bytes, as many as there are rows: the smallest tokenizer that GGUF has a
// name for.
std::string byte_tokenizer(int32_t vocab_size) {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < std::min(256, vocab_size - 3); ++byte)
    vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  Json json;
  json["added_tokens"] = Json::array();
  for (const auto& [id, text] : std::map<int, std::string>{{0, "<unk>"}, {1, "<s>"}, {2, "</s>"}}) {
    json["added_tokens"].push_back({{"id", id}, {"content", text}, {"special", true}});
  }
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}};
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  json["model"] = {{"type", "BPE"},
                   {"unk_token", "<unk>"},
                   {"byte_fallback", true},
                   {"vocab", vocab},
                   {"merges", Json::array()}};
  return json.dump();
}

// A model folder of the golden ones with a tokenizer.
class Folder {
 public:
  explicit Folder(const std::string& model) {
    for (const auto& file : std::filesystem::directory_iterator(golden_dir() / model)) {
      std::filesystem::copy(file.path(), dir_.path());
    }
    dir_.write("tokenizer.json", byte_tokenizer(load_model_config(dir_.path()).vocab_size));
  }
  const std::filesystem::path& path() const { return dir_.path(); }
  const TempDir& dir() const { return dir_; }
  Reader exported(GgufType type) const {
    export_gguf(dir_.path(), dir_.path() / "out.gguf", type);
    return Reader(read_bytes(dir_.path() / "out.gguf"));
  }

 private:
  TempDir dir_;
};

uint32_t number_of(const std::string& type) {
  const std::map<std::string, uint32_t> numbers = {
      {"f32", 0}, {"f16", 1}, {"q8_0", 8}, {"bf16", 30}};
  return numbers.at(type);
}

TEST(GgufGolden, TensorsAreThoseOfTheConverter) {
  const Json golden = Json::parse(read_bytes(golden_dir().parent_path() / "gguf" / "tensors.json"));
  int num_q8 = 0;
  for (const auto& [model, by_type] : golden.at("models").items()) {
    const Folder folder(model);
    for (const auto& [type_name, tensors] : by_type.items()) {
      const Reader file = folder.exported(static_cast<GgufType>(number_of(type_name)));
      EXPECT_EQ(file.tensors.size(), tensors.size()) << model;
      for (const Json& expected : tensors) {
        const auto found = file.tensors.find(expected[0].get<std::string>());
        ASSERT_NE(found, file.tensors.end()) << model << " " << expected[0];
        EXPECT_EQ(found->second.type, number_of(expected[1])) << model << " " << expected[0];
        EXPECT_EQ(found->second.shape, expected[2].get<std::vector<uint64_t>>());
        EXPECT_EQ(fnv1a64(found->second.bytes), expected[3])
            << model << " " << type_name << " " << expected[0];
        num_q8 += expected[1] == "q8_0" ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_q8, 10);
}

TEST(GgufExport, KeyValues) {
  const Folder folder("llama3-rope-bf16");
  const Reader file = folder.exported(GgufType::kQ8_0);
  EXPECT_EQ(file.get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(file.get<uint32_t>("general.file_type"), 7u);
  EXPECT_EQ(file.get<uint32_t>("llama.block_count"), 2u);
  EXPECT_EQ(file.get<uint32_t>("llama.attention.head_count_kv"), 2u);
  EXPECT_EQ(file.get<uint32_t>("llama.attention.key_length"), 16u);
  EXPECT_EQ(file.get<uint32_t>("llama.context_length"), 256u);
  EXPECT_EQ(file.get<float>("llama.rope.freq_base"), 10'000.0f);
  EXPECT_EQ(file.get<float>("llama.attention.layer_norm_rms_epsilon"), 1e-5f);
  EXPECT_EQ(file.get<std::string>("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(file.get<std::vector<std::string>>("tokenizer.ggml.tokens").size(), 259u);
  const auto types = file.get<std::vector<int32_t>>("tokenizer.ggml.token_type");
  EXPECT_EQ((std::vector<int32_t>{types[0], types[1], types[2], types[3], types[258]}),
            (std::vector<int32_t>{2, 3, 3, 6, 6}));
  EXPECT_EQ(file.get<uint32_t>("tokenizer.ggml.bos_token_id"), 1u);
  EXPECT_TRUE(file.get<bool>("tokenizer.ggml.add_space_prefix"));
  EXPECT_FALSE(file.get<bool>("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(Folder("qwen3-bf16").exported(GgufType::kF32).get<std::string>("general.architecture"),
            "qwen3");
  EXPECT_EQ(
      Folder("mistral-full-f16").exported(GgufType::kF32).get<std::string>("general.architecture"),
      "llama");
}

// The vocabularies alone, with a config that has rows for them.
GgufMetadata vocabulary_of(const std::string& tokenizer, int32_t vocab_size) {
  const TempDir dir;
  dir.write("tokenizer.json",
            read_bytes(golden_dir().parent_path() / "tokenizer" / tokenizer / "tokenizer.json"));
  ModelConfig config;
  config.vocab_size = vocab_size;
  GgufMetadata metadata;
  add_gguf_vocabulary(dir.path(), config, metadata);
  return metadata;
}

Reader only_metadata(const GgufMetadata& metadata) {
  const TempDir dir;
  GgufWriter writer(dir.path() / "x.gguf", metadata, {});
  writer.finish();
  return Reader(read_bytes(dir.path() / "x.gguf"));
}

TEST(GgufVocabulary, KindsByName) {
  const std::map<std::string, std::string> rules = {
      {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"smollm", "smollm"}};
  for (const auto& [tokenizer, rule] : rules) {
    const Reader file = only_metadata(vocabulary_of(tokenizer, 4000));
    EXPECT_EQ(file.get<std::string>("tokenizer.ggml.model"), "gpt2") << tokenizer;
    EXPECT_EQ(file.get<std::string>("tokenizer.ggml.pre"), rule) << tokenizer;
    EXPECT_GT(file.get<std::vector<std::string>>("tokenizer.ggml.merges").size(), 100u);
    const auto tokens = file.get<std::vector<std::string>>("tokenizer.ggml.tokens");
    ASSERT_EQ(tokens.size(), 4000u);
    EXPECT_EQ(tokens[3999], "[PAD3999]");
    EXPECT_EQ(file.get<std::vector<int32_t>>("tokenizer.ggml.token_type")[3999], 5);
  }
  EXPECT_THROW(vocabulary_of("unknown_pattern", 4000), Error);
  EXPECT_THROW(vocabulary_of("prefix_space", 4000), Error);
  EXPECT_THROW(vocabulary_of("gpt2", 10), Error) << "tokens without a row";
}

// A pair that merges earlier makes a piece of a higher score.
TEST(GgufVocabulary, ScoresFollowTheMerges) {
  const Reader file = only_metadata(vocabulary_of("llama2", 4000));
  const Json json = Json::parse(
      read_bytes(golden_dir().parent_path() / "tokenizer" / "llama2" / "tokenizer.json"));
  const Json& model = json.at("model");
  const auto scores = file.get<std::vector<float>>("tokenizer.ggml.scores");
  ASSERT_EQ(scores.size(), 4000u);
  std::map<std::string, size_t> first_rank;
  size_t rank = 0;
  for (const Json& merge : model.at("merges")) {
    std::string piece;
    if (merge.is_array()) {
      piece = merge[0].get<std::string>() + merge[1].get<std::string>();
    } else {
      piece = merge.get<std::string>();
      piece.erase(piece.find(' '), 1);
    }
    first_rank.emplace(piece, rank++);
  }
  ASSERT_GT(first_rank.size(), 100u);
  for (const auto& [piece, at] : first_rank) {
    EXPECT_EQ(scores.at(model.at("vocab").at(piece).get<size_t>()), -static_cast<float>(at));
  }
}

TEST(GgufQuantize, BlocksAreNearTheValues) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * 1.7f) * 3;
  for (size_t i = 32; i < 64; ++i) values[i] = 0.0f;
  std::vector<std::byte> blocks(68);
  ASSERT_TRUE(quantize_q8_0(values.data(), 64, blocks.data()));
  uint16_t bits = 0;
  std::memcpy(&bits, blocks.data(), 2);
  const float scale = ops::f16_to_float(bits);
  int most = 0;
  for (size_t i = 0; i < 32; ++i) {
    const int level = static_cast<int8_t>(blocks[2 + i]);
    most = std::max(most, std::abs(level));
    EXPECT_LE(std::abs(static_cast<float>(level) * scale - values[i]), 0.52f * scale);
  }
  EXPECT_EQ(most, 127);
  for (size_t i = 34; i < 68; ++i) EXPECT_EQ(blocks[i], std::byte{0}) << "a block of zeros";
  values[5] = std::nanf("");
  EXPECT_FALSE(quantize_q8_0(values.data(), 64, blocks.data()));
}

TEST(GgufExport, RefusesWhatATypeCannotHold) {
  const Folder folder("llama-tied-f32");
  std::string bytes = read_bytes(folder.path() / "model.safetensors");
  // The last float of the file belongs to some matrix or norm; all of the last row become large.
  const float large = 1e6f;
  for (size_t i = 1; i <= 4000; ++i) {
    std::memcpy(bytes.data() + bytes.size() - 4 * i, &large, sizeof(large));
  }
  folder.dir().write("model.safetensors", bytes);
  EXPECT_THROW(folder.exported(GgufType::kF16), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.gguf")) << "nothing half written";
  EXPECT_NO_THROW(folder.exported(GgufType::kBF16));
  EXPECT_THROW(export_gguf(folder.path(), folder.path() / "none" / "x.gguf", GgufType::kF32),
               Error);
  folder.dir().write("tokenizer.json", "{}");
  EXPECT_THROW(folder.exported(GgufType::kF32), Error);
}

}  // namespace
}  // namespace outrider
