// The safetensors reader: what it reads, and that it refuses every kind of broken file with one
// sentence.
#include "models/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <utility>

#include "models/checkpoint/safetensors_writer.h"
#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

std::string with_header(const std::string& header,
                        const std::string& data,
                        uint64_t claimed_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(claimed_bytes >> (8 * i) & 0xFF);
  return file + header + data;
}

std::string with_header(const std::string& header, const std::string& data) {
  return with_header(header, data, header.size());
}

// The sentence of the error a file gives; empty when it is read.
std::string complaint(const std::string& bytes) {
  const TempDir dir;
  dir.write("x.safetensors", bytes);
  try {
    SafetensorsFile file(dir.path() / "x.safetensors");
    return "";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("x.safetensors"), std::string::npos) << error.what();
    return error.what();
  }
}

void expect_complaint(const std::string& bytes, const std::string& part) {
  EXPECT_NE(complaint(bytes).find(part), std::string::npos)
      << "expected \"" << part << "\", got: " << complaint(bytes);
}

const char* kTwoTensors =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]},"__metadata__":{"format":"pt"}})";

TEST(Safetensors, ReadsTensorsAndParts) {
  const TempDir dir;
  dir.write("x.safetensors", with_header(kTwoTensors, "abcdefgh1234"));
  const SafetensorsFile file(dir.path() / "x.safetensors");
  EXPECT_EQ(file.tensors().size(), 2u);
  const TensorInfo* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, ops::DType::kBF16);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 1}));
  char bytes[2] = {};
  file.read(*b, 1, bytes, 2);
  EXPECT_EQ(std::string(bytes, 2), "23");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, ReadsTensorsWithoutElements) {
  EXPECT_EQ(complaint(with_header(R"({"a":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                                  R"("b":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})",
                                  "12345678")),
            "");
  EXPECT_EQ(complaint(with_header("{}", "")), "");
}

TEST(Safetensors, RefusesWrongSizes) {
  expect_complaint("", "too short");
  expect_complaint("1234567", "too short");
  expect_complaint(with_header(kTwoTensors, "abcdefgh123"), "do not lie in the file's 11 bytes");
  expect_complaint(with_header(kTwoTensors, "abcdefgh12345"), "but the file has 13");
  const uint64_t absurd[] = {~uint64_t{0}, uint64_t{1} << 63, 100'000'001, 1000, ~uint64_t{0} - 7};
  for (const uint64_t claimed : absurd) {
    expect_complaint(with_header(kTwoTensors, "abcdefgh1234", claimed), "its header claims");
  }
}

std::string entry(const std::string& fields, const std::string& data) {
  return with_header("{\"t\":" + fields + "}", data);
}

TEST(Safetensors, RefusesWrongEntries) {
  const std::string data = "12345678";
  expect_complaint(entry(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})", data),
                   "\"F31\" is not known");
  expect_complaint(entry(R"({"shape":[2],"data_offsets":[0,8]})", data), "no dtype");
  expect_complaint(entry(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})", data), "no dtype");
  expect_complaint(entry(R"({"dtype":"F32","data_offsets":[0,8]})", data), "no shape");
  expect_complaint(entry(R"({"dtype":"F32","shape":[2]})", data), "no data_offsets");
  expect_complaint(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", data),
                   "no data_offsets");
  expect_complaint(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,-8]})", data),
                   "no data_offsets");
  expect_complaint(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8.5]})", data),
                   "no data_offsets");
  expect_complaint(entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", data),
                   "not a size");
  expect_complaint(entry(R"({"dtype":"F32","shape":[1e3],"data_offsets":[0,8]})", data),
                   "not a size");
  expect_complaint(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", data),
                   "needs 12 bytes");
  expect_complaint(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", data),
                   "do not lie");
  expect_complaint(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,9]})", data),
                   "do not lie");
  expect_complaint(
      entry(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", data),
      "9 dimensions");
  // 2^48 * 2^48 elements overflow 64 bits; the product must not come back around to a small number.
  expect_complaint(
      entry(R"({"dtype":"F32","shape":[281474976710656,281474976710656],"data_offsets":[0,0]})",
            ""),
      "too large");
  expect_complaint(with_header(R"({"t":5})", ""), "not an object");
  expect_complaint(with_header(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", ""),
                   "wrong length");
  expect_complaint(with_header("{\"" + std::string(5000, 'n') +
                                   R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                               ""),
                   "wrong length");
}

TEST(Safetensors, RefusesHolesAndOverlaps) {
  const auto two = [](const char* a, const char* b) {
    return with_header(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + a +
                           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                       "12345678");
  };
  EXPECT_EQ(complaint(two("[4,8]", "[0,4]")), "");
  expect_complaint(two("[0,4]", "[3,7]"), "begin at 3 but the tensor before ends at 4");
  expect_complaint(two("[0,4]", "[0,4]"), "begin at 0");
  expect_complaint(two("[1,5]", "[4,8]"), "begin at 1");
  expect_complaint(
      with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "12345678"),
      "describes 4 bytes of data but the file has 8");
}

TEST(Safetensors, RefusesBrokenJson) {
  expect_complaint(with_header("{", ""), "not valid JSON");
  expect_complaint(with_header("[]", ""), "not a JSON object");
  expect_complaint(with_header("{}x", ""), "not valid JSON");
  expect_complaint(with_header("{\"a\xff\":1}", ""), "not valid JSON");
  expect_complaint(with_header(std::string(1'000'000, '['), ""), "");
  EXPECT_NE(complaint(with_header(std::string(1'000'000, '['), "")), "");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  expect_complaint(with_header(deep, ""), "deeper than 4");
  expect_complaint(with_header(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                               ""),
                   "has the key \"a\" twice");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempDir dir;
  EXPECT_THROW(SafetensorsFile(dir.path()), Error);
  EXPECT_THROW(SafetensorsFile(dir.path() / "none.safetensors"), Error);
  std::filesystem::create_symlink("loop.safetensors", dir.path() / "loop.safetensors");
  EXPECT_THROW(SafetensorsFile(dir.path() / "loop.safetensors"), Error);
  EXPECT_THROW(Checkpoint{dir.path()}, Error);
}

// Whatever single bytes of a header become, the answer is a table that fits the file or one
// sentence.
TEST(Safetensors, MutatedHeadersNeverCrash) {
  const std::string good = with_header(kTwoTensors, "abcdefgh1234");
  const TempDir dir;
  uint32_t seed = 12345;
  const auto next = [&seed](uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
  };
  const std::string alphabet("0123456789{}[]\":,.-eFB\\\0\xff", 26);
  int num_refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (uint32_t edits = 1 + next(4); edits > 0; --edits) {
      const uint32_t at = next(static_cast<uint32_t>(bytes.size()));
      const uint32_t kind = next(4);
      if (kind == 0) bytes[at] = static_cast<char>(next(256));
      if (kind == 1) bytes[at] = alphabet[next(static_cast<uint32_t>(alphabet.size()))];
      if (kind == 2) bytes.erase(at, 1 + next(8));
      if (kind == 3)
        bytes.insert(at, bytes.substr(next(static_cast<uint32_t>(bytes.size())), next(16)));
      if (bytes.empty()) bytes = "x";
    }
    dir.write("x.safetensors", bytes);
    try {
      const SafetensorsFile file(dir.path() / "x.safetensors");
      for (const auto& [name, info] : file.tensors()) {
        ASSERT_LE(info.end, bytes.size());
        std::string data(info.end - info.begin, '\0');
        file.read(info, 0, data.data(), data.size());
      }
    } catch (const Error&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 1000);
  EXPECT_LT(num_refused, 2000);
}

std::string index_of(const std::string& map) { return "{\"weight_map\":" + map + "}"; }

std::string folder_complaint(const std::string& index) {
  const TempDir dir;
  dir.write("model.safetensors.index.json", index);
  dir.write("one.safetensors", with_header(kTwoTensors, "abcdefgh1234"));
  try {
    Checkpoint checkpoint(dir.path());
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Checkpoint, ReadsWhatTheIndexNames) {
  const TempDir dir;
  dir.write("model.safetensors.index.json",
            index_of(R"({"a":"one.safetensors","t":"two.safetensors"})"));
  dir.write("one.safetensors", with_header(kTwoTensors, "abcdefgh1234"));
  dir.write("two.safetensors",
            entry(R"({"dtype":"F16","shape":[4],"data_offsets":[0,8]})", "12345678"));
  const Checkpoint checkpoint(dir.path());
  EXPECT_NE(checkpoint.find("a").info, nullptr);
  EXPECT_EQ(checkpoint.find("t").info->dtype, ops::DType::kF16);
  EXPECT_EQ(checkpoint.find("b").info, nullptr);  // in a file, but not in the index
}

TEST(Checkpoint, RefusesNamesThatLeaveTheFolder) {
  for (const char* name : {"../one.safetensors",
                           "/etc/one.safetensors",
                           "sub/one.safetensors",
                           "..",
                           ".one.safetensors",
                           "a..safetensors",
                           "",
                           "one.bin",
                           "model.safetensors.index.json",
                           "x\\\\one.safetensors",
                           "one\\u0000.safetensors"}) {
    const std::string index = index_of(std::string("{\"a\":\"") + name + "\"}");
    EXPECT_NE(folder_complaint(index).find("is not the name of a .safetensors file"),
              std::string::npos)
        << name << ": " << folder_complaint(index);
  }
}

TEST(Checkpoint, RefusesABrokenIndex) {
  EXPECT_EQ(folder_complaint(index_of(R"({"a":"one.safetensors"})")), "");
  const auto expect_part = [](const std::string& index, const char* part) {
    EXPECT_NE(folder_complaint(index).find(part), std::string::npos) << folder_complaint(index);
  };
  expect_part("{}", "weight_map");
  expect_part(index_of("[]"), "weight_map");
  expect_part(index_of("{}"), "weight_map");
  expect_part(index_of(R"({"a":1})"), "not a text");
  expect_part(index_of(R"({"a":"two.safetensors"})"), "is not there, though model.safetensors.index");
  expect_part(index_of(R"({"z":"one.safetensors"})"), "does not have it");
  expect_part(index_of(R"({"a":"one.safetensors","a":"one.safetensors"})"),
              "has the key \"a\" twice");
  expect_part("nonsense", "not valid JSON");
}

// Weights that do not fit the config.
class BrokenModel : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& file :
         std::filesystem::directory_iterator(golden_dir() / "llama-untied-bf16")) {
      std::filesystem::copy(file.path(), dir_.path());
    }
  }
  std::string load_complaint() {
    try {
      const ModelConfig config = load_model_config(dir_.path());
      load_weights(dir_.path(), config, shard_model(config, 0, 1));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  void replace_in(const std::string& file, const std::string& from, const std::string& to) {
    std::string bytes = read_bytes(dir_.path() / file);
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    bytes.replace(at, from.size(), to);
    dir_.write(file, bytes);
  }
  TempDir dir_;
};

TEST_F(BrokenModel, LoadsWhenWhole) { EXPECT_EQ(load_complaint(), ""); }

TEST_F(BrokenModel, ProgressEndsAtTheWhole) {
  const ModelConfig config = load_model_config(dir_.path());
  for (int rank = 0; rank < 3; ++rank) {
    size_t done = 0;
    size_t all = 0;
    load_weights(dir_.path(), config, shard_model(config, rank, 3), [&](size_t now, size_t total) {
      EXPECT_GT(now, done);
      done = now;
      all = total;
    });
    EXPECT_GT(all, 0u);
    EXPECT_EQ(done, all);
  }
}

TEST_F(BrokenModel, AMissingTensorIsNamed) {
  replace_in("model.safetensors", "layers.1.mlp.up_proj", "layers.1.mlp.UP_proj");
  EXPECT_NE(
      load_complaint().find("tensor \"model.layers.1.mlp.up_proj.weight\" is missing; expected in "
                            "shape [100, 48]"),
      std::string::npos)
      << load_complaint();
}

TEST_F(BrokenModel, AWrongShapeIsNamed) {
  replace_in("config.json", "\"intermediate_size\": 100", "\"intermediate_size\": 104");
  EXPECT_NE(load_complaint().find(
                "gate_proj.weight\" has shape [100, 48] but config.json asks for [104, 48]"),
            std::string::npos)
      << load_complaint();
}

TEST_F(BrokenModel, AWrongTypeIsNamed) {
  std::string bytes = read_bytes(dir_.path() / "model.safetensors");
  size_t num_replaced = 0;
  for (size_t at = 0; (at = bytes.find("\"BF16\"", at)) != std::string::npos; ++num_replaced) {
    bytes.replace(at, 6, "\"I16\" ");
  }
  ASSERT_GT(num_replaced, 10u);
  dir_.write("model.safetensors", bytes);
  EXPECT_NE(load_complaint().find("is of type I16; weights must be F32, BF16 or F16"),
            std::string::npos)
      << load_complaint();
}

TEST_F(BrokenModel, ATruncatedFileIsRefused) {
  const std::string bytes = read_bytes(dir_.path() / "model.safetensors");
  for (const size_t size :
       {bytes.size() - 1, bytes.size() / 2, size_t{100}, size_t{8}, size_t{0}}) {
    dir_.write("model.safetensors", bytes.substr(0, size));
    EXPECT_NE(load_complaint(), "") << size;
  }
}

// A file that shrinks after its header was read ends in a sentence, not in a signal.
TEST_F(BrokenModel, AShrinkingFileIsRefused) {
  const Checkpoint checkpoint(dir_.path());
  const auto [file, info] = checkpoint.find("model.norm.weight");
  ASSERT_NE(info, nullptr);
  std::filesystem::resize_file(dir_.path() / "model.safetensors", info->begin + 1);
  std::string data(info->end - info->begin, '\0');
  EXPECT_THROW(file->read(*info, 0, data.data(), data.size()), Error);
}

TEST_F(BrokenModel, WeightsCannotBeLargerThanTheConfigAllows) {
  replace_in("config.json", "\"vocab_size\": 259", "\"vocab_size\": 1999999");
  EXPECT_NE(load_complaint().find("embed_tokens.weight\" has shape [259, 48]"), std::string::npos);
}

// Tensors beside those of the config: they must change nothing, or be refused.
class SurplusTensors : public BrokenModel {
 protected:
  // The folder's weights with one more tensor of the same type, as long as `bytes`.
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::string& bytes) {
    const std::filesystem::path path = dir_.path() / "model.safetensors";
    std::vector<std::pair<PlannedTensor, std::string>> tensors;
    {
      const SafetensorsFile file(path);
      for (const auto& [own, info] : file.tensors()) {
        std::string data(info.end - info.begin, '\0');
        file.read(info, 0, data.data(), data.size());
        tensors.push_back({{own, info.type_name, info.shape}, std::move(data)});
      }
    }
    tensors.push_back({{name, "BF16", shape}, bytes});
    std::vector<PlannedTensor> planned;
    for (const auto& [tensor, data] : tensors) planned.push_back(tensor);
    SafetensorsWriter writer(path, planned);
    for (const auto& [tensor, data] : tensors)
      writer.append(tensor.name, std::as_bytes(std::span(data)));
    writer.finish();
  }
  std::string bytes_of(const std::string& name) {
    const SafetensorsFile file(dir_.path() / "model.safetensors");
    const TensorInfo& info = *file.find(name);
    std::string data(info.end - info.begin, '\0');
    file.read(info, 0, data.data(), data.size());
    return data;
  }
};

TEST_F(SurplusTensors, ATiedHeadMustBeTheEmbedding) {
  replace_in("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  EXPECT_NE(load_complaint().find("\"lm_head.weight\" differs from \"model.embed_tokens.weight\", "
                                  "but config.json has tie_word_embeddings true: set it to false"),
            std::string::npos)
      << load_complaint();
  const ModelConfig config = load_model_config(dir_.path());
  EXPECT_THROW(load_weights(dir_.path(), config, shard_model(config, 1, 2)), Error);
  replace_in("model.safetensors", "\"lm_head.weight\"", "\"no_head.weight\"");
  EXPECT_EQ(load_complaint(), "") << "without a head";
}

TEST_F(SurplusTensors, ACopyOfTheEmbeddingIsFineAsAHead) {
  std::filesystem::remove_all(dir_.path());
  std::filesystem::copy(golden_dir() / "qwen2-tied-bf16", dir_.path());
  const ModelConfig config = load_model_config(dir_.path());
  ASSERT_TRUE(config.tied_head);
  const std::string embedding = bytes_of("model.embed_tokens.weight");
  add("lm_head.weight", {config.vocab_size, config.hidden_dim}, embedding);
  EXPECT_EQ(load_complaint(), "");
  // One value of the last row: only the rank that has the row can see it.
  std::string other = embedding;
  other[other.size() - 2] ^= 1;
  const std::string whole = read_bytes(dir_.path() / "model.safetensors");
  const size_t at = whole.rfind(embedding);
  ASSERT_NE(at, std::string::npos);
  dir_.write("model.safetensors", std::string(whole).replace(at, embedding.size(), other));
  EXPECT_NE(load_complaint().find("lm_head.weight"), std::string::npos) << load_complaint();
  load_weights(dir_.path(), config, shard_model(config, 0, 2));
  EXPECT_THROW(load_weights(dir_.path(), config, shard_model(config, 1, 2)), Error);
}

TEST_F(SurplusTensors, ABiasThatNobodyAddsMustBeZero) {
  const std::string zeros(2 * 48, '\0');
  std::string minus_zero = zeros;
  minus_zero[3] = static_cast<char>(0x80);
  add("model.layers.0.self_attn.o_proj.bias", {48}, minus_zero);
  EXPECT_EQ(load_complaint(), "");
  std::string bias = zeros;
  bias[95] = 1;
  add("model.layers.1.mlp.down_proj.bias", {48}, bias);
  EXPECT_NE(
      load_complaint().find("tensor \"model.layers.1.mlp.down_proj.bias\" is not zero, but by "
                            "config.json there is no such bias"),
      std::string::npos)
      << load_complaint();
}

TEST_F(SurplusTensors, ANormOfAnotherFamilyIsRefused) {
  add("model.layers.1.self_attn.q_norm.weight", {1}, std::string(2, '\0'));
  EXPECT_NE(load_complaint().find("\"model.layers.1.self_attn.q_norm.weight\" is there, but "
                                  "model_type llama has no such tensor"),
            std::string::npos)
      << load_complaint();
}

}  // namespace
}  // namespace outrider
