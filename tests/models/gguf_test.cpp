// GGUF files: blocks against gguf-py's reference (tests/golden/gguf, made by
// tools/make_gguf_golden.py); a model against the folder it was written from, bit for bit; files
// that are cut or changed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "models/checkpoint/checkpoint_plan.h"
#include "models/forward/rope_frequencies.h"
#include "models/gguf/gguf_blocks.h"
#include "models/gguf/gguf_documents.h"
#include "models/text/tokenizer.h"
#include "models/weights/weights.h"
#include "runtime/base/numbers/rng.h"
#include "tests/base/error_sentence.h"
#include "tests/models/gguf_writer.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;
using Json = nlohmann::json;

uint32_t crc32(const void* data, size_t num_bytes) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < num_bytes; ++i) {
    crc ^= static_cast<const uint8_t*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(GgufBlocks, HaveTheBitsOfTheReferenceDequantisation) {
  const auto golden = Json::parse(read_bytes(std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests" /
                                             "golden" / "gguf" / "blocks.json"));
  ASSERT_EQ(golden.at("cases").size(), 16u);
  for (const Json& test : golden.at("cases")) {
    const GgufType* type = gguf_type(test.at("type").get<uint32_t>());
    ASSERT_NE(type, nullptr) << test.at("name");
    EXPECT_EQ(type->name, test.at("name").get<std::string>());
    const std::string blocks = from_hex(test.at("blocks").get<std::string>());
    const size_t count = blocks.size() / static_cast<size_t>(type->block_bytes);
    std::vector<float> values(count * static_cast<size_t>(type->block_values));
    ASSERT_EQ(values.size(), test.at("num_values").get<size_t>());
    for (size_t b = 0; b < count; ++b)
      dequantize(*type,
                 reinterpret_cast<const uint8_t*>(blocks.data()) +
                     b * static_cast<size_t>(type->block_bytes),
                 &values[b * static_cast<size_t>(type->block_values)]);
    EXPECT_EQ(crc32(values.data(), values.size() * sizeof(float)), test.at("crc32").get<uint32_t>())
        << type->name;
  }
}

struct Name {
  const char* folder;
  const char* gguf;
};

std::string gguf_name(std::string name) {
  constexpr Name kNames[] = {{"model.embed_tokens", "token_embd"},
                             {"model.norm", "output_norm"},
                             {"lm_head", "output"},
                             {"model.layers", "blk"},
                             {"input_layernorm", "attn_norm"},
                             {"post_attention_layernorm", "ffn_norm"},
                             {"self_attn.q_norm", "attn_q_norm"},
                             {"self_attn.k_norm", "attn_k_norm"},
                             {"self_attn.q_proj", "attn_q"},
                             {"self_attn.k_proj", "attn_k"},
                             {"self_attn.v_proj", "attn_v"},
                             {"self_attn.o_proj", "attn_output"},
                             {"mlp.gate_proj", "ffn_gate"},
                             {"mlp.up_proj", "ffn_up"},
                             {"mlp.down_proj", "ffn_down"}};
  for (const auto& [folder, gguf] : kNames)
    if (const size_t at = name.find(folder); at != std::string::npos)
      name.replace(at, std::strlen(folder), gguf);
  return name;
}

// llama.cpp's converter: a head's rows as pairs of neighbours.
std::string as_pairs(const std::string& data, int64_t n_rows, int64_t head_dim) {
  const size_t row_bytes = data.size() / static_cast<size_t>(n_rows);
  std::string out = data;
  for (int64_t row = 0; row < n_rows; ++row) {
    const int64_t i = row % head_dim;
    const int64_t to = row - i + (i < head_dim / 2 ? 2 * i : 2 * (i - head_dim / 2) + 1);
    std::memcpy(&out[static_cast<size_t>(to) * row_bytes],
                &data[static_cast<size_t>(row) * row_bytes],
                row_bytes);
  }
  return out;
}

void write_keys(const ModelConfig& config, GgufWriter& gguf) {
  const std::string& name = config.model_type;
  gguf.text("general.architecture", name);
  const auto number = [&](const char* key, int32_t value) {
    gguf.number(name + "." + key, static_cast<uint32_t>(value));
  };
  number("block_count", config.n_layers);
  number("context_length", config.max_positions);
  number("embedding_length", config.hidden_dim);
  number("feed_forward_length", config.ffn_dim);
  number("attention.head_count", config.n_heads);
  number("attention.head_count_kv", config.n_kv_heads);
  number("attention.key_length", config.head_dim);
  number("rope.dimension_count", config.head_dim);
  gguf.real(name + ".attention.layer_norm_rms_epsilon", config.norm_eps);
  gguf.real(name + ".rope.freq_base", static_cast<float>(config.rope.theta));
}

// The bytes of a tensor in the type that the file is to have.
using Encode = std::function<std::string(const TensorShape&, const std::vector<float>&)>;

std::vector<float> values_of(const TensorSource& source, const TensorShape& tensor) {
  const ops::DType dtype = source.expect(tensor.name, tensor.shape);
  const int64_t n_rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
  const int64_t n_columns = tensor.shape.back();
  std::vector<std::byte> raw(static_cast<size_t>(n_rows * n_columns) * ops::dtype_bytes(dtype));
  source.read({tensor.name, n_columns, {0, n_rows}, {0, n_columns}}, raw.data());
  const GgufType* type = gguf_type(dtype == ops::DType::kF32    ? kGgufF32
                                   : dtype == ops::DType::kBF16 ? kGgufBF16
                                                                : kGgufF16);
  std::vector<float> values(static_cast<size_t>(n_rows * n_columns));
  for (size_t i = 0; i < values.size(); ++i)
    dequantize(*type,
               reinterpret_cast<const uint8_t*>(raw.data()) + i * ops::dtype_bytes(dtype),
               &values[i]);
  return values;
}

std::string f32_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<int> places_of_scales(const std::string& type) {
  if (type == "Q2_K") return {80, 82};
  if (type == "Q3_K") return {108};
  if (type == "Q6_K") return {208};
  if (type == "Q4_1" || type == "Q5_1" || type == "Q4_K" || type == "Q5_K") return {0, 2};
  return {0};
}

// Random blocks of a type, with scales that are small numbers.
std::string random_blocks(const GgufType& type, int64_t num_values) {
  static std::mt19937 draws(1);
  std::string out;
  for (int64_t b = 0; b < num_values / type.block_values; ++b) {
    for (int i = 0; i < type.block_bytes; ++i) out.push_back(static_cast<char>(draws() >> 24));
    char* block = out.data() + out.size() - static_cast<size_t>(type.block_bytes);
    const std::string name = type.name;
    const auto set_half = [&](int at) {
      std::memcpy(block + at, draws() >> 31 != 0 ? "\x00\x18" : "\x55\x99", 2);
    };
    if (name == "MXFP4") {
      block[0] = 120;
    } else {
      for (const int at : places_of_scales(name)) set_half(at);
    }
  }
  return out;
}

bool is_projection(const TensorShape& tensor) {
  return tensor.shape.size() == 2 && tensor.name.find("_proj") != std::string::npos &&
         tensor.shape[1] % 32 == 0;
}

// What llama.cpp's converter makes of Llama 3's scaling.
std::string rope_factors(const ModelConfig& config) {
  RopeConfig plain = config.rope;
  plain.scaling = RopeScaling::kNone;
  std::vector<float> factors = rope_frequencies(plain);
  const std::vector<float> scaled = rope_frequencies(config.rope);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  EXPECT_GT(factors.back(), 1.5f);
  return f32_bytes(factors);
}

// matrix_type: of the name of a projection or of the embedding.
std::string as_gguf(const std::filesystem::path& folder,
                    const std::function<uint32_t(const std::string&)>& matrix_type) {
  const ModelConfig config = load_model_config(folder);
  const auto source = make_checkpoint_source(folder, config, {0, config.vocab_size});
  GgufWriter gguf;
  write_keys(config, gguf);
  if (config.rope.scaling == RopeScaling::kLlama3)
    gguf.tensor("rope_freqs.weight", {config.rope.rotary_dim / 2}, kGgufF32, rope_factors(config));
  for (const TensorShape& tensor : checkpoint_tensors(config)) {
    const std::vector<float> values = values_of(*source, tensor);
    const bool is_matrix = is_projection(tensor) || tensor.name == "model.embed_tokens.weight";
    const uint32_t type = is_matrix ? matrix_type(tensor.name) : kGgufF32;
    const bool is_float = type == kGgufF32;
    std::string data = is_float
                           ? f32_bytes(values)
                           : random_blocks(*gguf_type(type), tensor.shape[0] * tensor.shape[1]);
    const bool is_turned =
        config.model_type == "llama" && (tensor.name.find("q_proj") != std::string::npos ||
                                         tensor.name.find("k_proj") != std::string::npos);
    if (is_turned) data = as_pairs(data, tensor.shape[0], config.head_dim);
    gguf.tensor(gguf_name(tensor.name), tensor.shape, type, data);
  }
  return gguf.whole();
}

// Converters name one end token; llama.cpp finds those of a turn by their texts.
TEST(GgufModels, TurnsEndByTheTextsOfTheirTokens) {
  const ModelConfig config = load_model_config(golden_dir() / "llama-untied-bf16");
  const auto ends_of = [&](std::vector<std::string> tokens) {
    GgufWriter gguf;
    write_keys(config, gguf);
    gguf.number("tokenizer.ggml.eos_token_id", 1);
    tokens.resize(static_cast<size_t>(config.vocab_size), "x");
    gguf.texts("tokenizer.ggml.tokens", tokens);
    gguf.tensor("token_embd.weight",
                {config.vocab_size, config.hidden_dim},
                kGgufF32,
                std::string(4 * static_cast<size_t>(config.vocab_size) *
                                static_cast<size_t>(config.hidden_dim),
                            0));
    TempDir dir;
    return load_model_config(written(dir, gguf.whole())).eos_token_ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ends_of({"a", "<eos>", "<end_of_turn>"}), (Ids{1, 2}));
  EXPECT_EQ(ends_of({"a", "<|endoftext|>", "<|end|>"}), (Ids{1, 2}));
  EXPECT_EQ(ends_of({"a", "<|return|>", "<|call|>", "<|end|>"}), (Ids{1, 2}));
}

class GgufModel : public testing::TestWithParam<const char*> {};

TEST_P(GgufModel, HasTheLogitsOfItsFolderBitForBit) {
  const auto folder = golden_dir() / GetParam();
  TempDir dir;
  const auto file = written(dir, as_gguf(folder, [](const std::string&) { return kGgufF32; }));
  const std::vector<int32_t> text = {3, 17, 5, 40, 9, 2, 31};
  LoneModel from_folder(folder, ops::best_isa());
  LoneModel from_file(file, ops::best_isa());
  // The folder's matrices may be of 16 bits, the file's are their floats.
  const auto expected = from_folder.run(text, 0, block_ids(0, 4));
  const auto got = from_file.run(text, 0, block_ids(0, 4));
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
}

TEST(GgufModels, RopeFactorsAreLlama3sScaling) {
  const auto folder = golden_dir() / "llama3-rope-bf16";
  TempDir dir;
  const auto file = written(dir, as_gguf(folder, [](const std::string&) { return kGgufF32; }));
  LoneModel from_folder(folder, ops::best_isa());
  LoneModel from_file(file, ops::best_isa());
  std::vector<int32_t> text(40);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(3 + 7 * i % 50);
  const auto expected = from_folder.run(text, 0, block_ids(0, 4));
  const auto got = from_file.run(text, 0, block_ids(0, 4));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(std::abs(got[i] - expected[i]) < 1e-4f);
}

INSTANTIATE_TEST_SUITE_P(All,
                         GgufModel,
                         testing::Values("llama-untied-bf16",
                                         "llama-tied-f32",
                                         "llama-bias-f16",
                                         "qwen2-tied-bf16",
                                         "qwen3-bf16",
                                         "qwen3-tied-f32"));

// The floats that a tensor's blocks stand for.
std::vector<float> floats_of(const TensorSource& source, const Projection& projection) {
  const auto [name, n_out, n_in] = projection;
  EXPECT_EQ(source.expect(name + ".weight", {n_out, n_in}), ops::DType::kF32);
  std::vector<float> floats(static_cast<size_t>(n_out * n_in));
  source.read({name + ".weight", n_in, {0, n_out}, {0, n_in}},
              reinterpret_cast<std::byte*>(floats.data()));
  return floats;
}

void expect_integers_are(const TensorSource& source,
                         const Projection& projection,
                         const ops::QuantFormat& format,
                         const std::vector<float>& floats) {
  const auto [name, n_out, n_in] = projection;
  for (const Range columns : {Range{0, n_in}, Range{8, 72}, Range{56, n_in}}) {
    ops::PackedMatrix matrix(n_out, columns.size(), format, columns.begin);
    source.read_integers({name + ".weight", n_in, {0, n_out}, columns}, 0, matrix);
    std::vector<float> row(static_cast<size_t>(columns.size()));
    for (int64_t out = 0; out < n_out; ++out) {
      matrix.dequantize_row(out, row.data());
      for (int64_t i = 0; i < columns.size(); ++i)
        ASSERT_EQ(row[static_cast<size_t>(i)],
                  floats[static_cast<size_t>(out * n_in + columns.begin + i)])
            << name << " row " << out << " column " << columns.begin + i;
    }
  }
}

// Whole or cut by columns at any block of eight, in their own form or in a wider one.
TEST(GgufIntegers, StandForTheFloatsOfTheFile) {
  const auto folder = embedded_target();
  for (const uint32_t type : {2u, 3u, 6u, 7u, 8u, 10u, 11u, 12u, 13u, 14u, 20u, 23u, 39u}) {
    SCOPED_TRACE(gguf_type(type)->name);
    TempDir dir;
    const auto file = written(dir, as_gguf(folder, [&](const std::string&) { return type; }));
    const ModelConfig config = load_model_config(file);
    EXPECT_TRUE(config.is_quantized());
    const auto source = make_checkpoint_source(file, config, {0, config.vocab_size});
    const Projection projection{"model.layers.0.self_attn.q_proj",
                                int64_t{config.n_heads} * config.head_dim,
                                config.hidden_dim};
    const auto format = source->integer_format(projection);
    ASSERT_TRUE(format.has_value());
    const std::vector<float> floats = floats_of(*source, projection);
    EXPECT_GT(*std::max_element(floats.begin(), floats.end()), 0.0f);
    expect_integers_are(*source, projection, *format, floats);
    const bool fits_in_6 = type != kGgufQ8_0 && format->codes == ops::QuantCodes::kLinear;
    expect_integers_are(*source, projection, {fits_in_6 ? 6 : 8, 16, true}, floats);
  }
}

// v of another type than q, as Q4_K_M has it, lies apart; k of that type shares a matrix with q.
TEST(GgufIntegers, OfSeveralTypesShareAMatrix) {
  const auto types_of = [](uint32_t others, uint32_t values) {
    return [=](const std::string& name) {
      return name.find("q_proj") == std::string::npos ? values : others;
    };
  };
  for (const auto& [others, values] : {std::pair{12u, 14u}, {2u, 12u}, {39u, 13u}, {20u, 11u}}) {
    TempDir dir;
    const auto file = written(dir, as_gguf(embedded_target(), types_of(others, values)));
    const ModelConfig config = load_model_config(file);
    const ModelShard shard = shard_model(config, 0, 1);
    const auto weights = load_weights(file, config, shard);
    const auto source = make_checkpoint_source(file, config, {0, config.vocab_size});
    const LayerWeights& layer = weights->layers[0];
    ASSERT_TRUE(layer.qkv.is_quantized() && layer.v.is_quantized());
    int64_t out = 0;
    const auto expect_rows = [&](const ops::PackedMatrix& matrix, const Projection& of) {
      const std::vector<float> floats = floats_of(*source, of);
      std::vector<float> row(static_cast<size_t>(config.hidden_dim));
      for (size_t i = 0; i < floats.size(); i += row.size(), ++out) {
        matrix.dequantize_row(out, row.data());
        ASSERT_TRUE(std::equal(row.begin(), row.end(), floats.begin() + static_cast<ptrdiff_t>(i)));
      }
    };
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      const int64_t heads = name[0] == 'q' ? config.n_heads : config.n_kv_heads;
      const std::string whole = std::string("model.layers.0.self_attn.") + name;
      out = name[0] == 'v' ? 0 : out;
      expect_rows(name[0] == 'v' ? layer.v : layer.qkv,
                  {whole, heads * config.head_dim, config.hidden_dim});
    }
    out = 0;
    ASSERT_EQ(weights->embedding, nullptr);  // it stays in blocks
    expect_rows(weights->packed_embedding(),
                {"model.embed_tokens", config.vocab_size, config.hidden_dim});
    const std::vector<int32_t> text = {1, 2};
    TempDir of_floats;
    const auto floats = written(of_floats, as_gguf(file, [](auto&) { return kGgufF32; }));
    const auto got = LoneModel(file, ops::best_isa()).run(text, 0, block_ids(0, 2));
    const auto wanted = LoneModel(floats, ops::best_isa()).run(text, 0, block_ids(0, 2));
    const float most = std::abs(*std::ranges::max_element(wanted, {}, fabsf));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 0.1f * most) << others;
  }
}

class GgufRefusal : public testing::Test {
 protected:
  std::string file(const std::function<void(GgufWriter&)>& add) {
    GgufWriter gguf;
    add(gguf);
    return written(dir_, gguf.whole());
  }
  std::function<void()> loading(const std::string& path) {
    return [path] { load_model_config(path); };
  }
  TempDir dir_;
};

TEST_F(GgufRefusal, NamesTheFileAndTheReason) {
  const auto architecture = [](const char* name) {
    return [name](GgufWriter& gguf) { gguf.text("general.architecture", name); };
  };
  EXPECT_TRUE(fails_with(loading(file(architecture("bert"))),
                         "model.gguf: architecture 'bert' is not supported in GGUF"));
  EXPECT_TRUE(
      fails_with(loading(file(architecture("llama"))), "tensor 'token_embd.weight' is missing"));
  EXPECT_TRUE(fails_with(loading(file([](GgufWriter& gguf) {
                           gguf.text("general.architecture", "llama");
                           gguf.tensor("token_embd.weight", {2, 1}, kGgufF32, "01234567");
                           gguf.number("llama.rope.dimension_sections", 8);
                         })),
                         "'llama.rope.dimension_sections' is not supported"));
  EXPECT_TRUE(fails_with(loading(file([](GgufWriter& gguf) {
                           gguf.tensor("x", {1, 32}, 16, std::string(66, 'x'));
                         })),
                         "tensor 'x' is of type 16, which is not supported"));
  EXPECT_TRUE(fails_with(loading(file([](GgufWriter& gguf) {
                           gguf.tensor("x", {4, 40}, kGgufQ8_0, std::string(170, 'x'));
                         })),
                         "tensor 'x': rows of 40 values are not whole blocks of Q8_0"));
  EXPECT_TRUE(fails_with(loading(file([](GgufWriter& gguf) {
                           gguf.tensor("x", {8, 8}, kGgufF32, "short");
                         })),
                         "tensor 'x' lies beyond the end of the file"));
  EXPECT_TRUE(fails_with(loading(file([](GgufWriter& gguf) {
                           gguf.number("split.no", 0);
                           gguf.number("split.count", 2);
                         })),
                         "not named ...-00001-of-0000N.gguf"));
  GgufWriter split;
  split.number("split.no", 0);
  split.number("split.count", 2);
  for (const char* name :
       {"m-0001-of-00002.gguf", "m-00001-off-0002.gguf", "-.gguf", ".gguf.gguf"}) {
    dir_.write(name, split.whole());
    EXPECT_TRUE(fails_with(loading(dir_.path() / name), "not named ...-00001-of-0000N.gguf"));
  }
  dir_.write("model.gguf", "GGML");
  EXPECT_TRUE(fails_with(loading(dir_.path() / "model.gguf"), "is no GGUF file"));
  dir_.write("model.gguf", "GG");
  EXPECT_TRUE(fails_with(loading(dir_.path() / "model.gguf"), "the file ends within its header"));
}

TEST(GgufSplit, IsReadFromItsFirstPart) {
  TempDir dir;
  const auto part = [&](uint32_t number, const std::string& name) {
    GgufWriter gguf;
    gguf.number("split.no", number);
    gguf.number("split.count", 2);
    gguf.tensor(name, {1, 4}, kGgufF32, std::string(16, 'x'));
    dir.write("m-0000" + std::to_string(number + 1) + "-of-00002.gguf", gguf.whole());
  };
  part(0, "a");
  EXPECT_TRUE(fails_with([&] { GgufFile(dir.path() / "m-00001-of-00002.gguf"); }, "m-00002-of"));
  part(1, "b");
  const GgufFile file(dir.path() / "m-00001-of-00002.gguf");
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_TRUE(fails_with([&] { GgufFile(dir.path() / "m-00002-of-00002.gguf"); },
                         "is part 2 of 2: give the first, m-00001-of-00002.gguf"));
}

// Cut anywhere or with any bytes changed: a sentence or a model, never a crash.
TEST(GgufFuzz, CutAndChangedFilesAreRefusedOrRead) {
  const std::string whole =
      as_gguf(golden_dir() / "qwen3-tied-f32", [](const std::string&) { return kGgufQ8_0; });
  const std::string head = whole.substr(0, 4000);
  TempDir dir;
  const auto read = [&](const std::string& bytes) {
    const auto path = written(dir, bytes);
    try {
      const ModelConfig config = load_model_config(path);
      make_checkpoint_source(path, config, {0, config.vocab_size});
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(read(whole));
  for (size_t size = 0; size < head.size(); size += size < 200 ? 1 : 37)
    EXPECT_FALSE(read(whole.substr(0, size)));
  uint64_t state = 7;
  const auto draw = [&state](size_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>((state >> 33) % below);
  };
  for (int i = 0; i < 2000; ++i) {
    std::string changed = whole;
    for (size_t n = 1 + draw(4); n > 0; --n)
      changed[draw(head.size())] = static_cast<char>(draw(4) == 0 ? 255 : draw(256));
    read(changed);
  }
}

}  // namespace
}  // namespace outrider
