// 8-bit weights made at load and those of folders that `quantize` writes are the same bits, for any
// number of ranks; what it writes has the form it says; damaged integers are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/safetensors_writer.h"
#include "models/weights/quantized_folder.h"
#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

constexpr ops::QuantFormat kInt8 = {.bits = 8, .group_size = 128};

std::unique_ptr<Weights> load(const std::filesystem::path& dir,
                              const ops::QuantFormat& format,
                              int rank = 0,
                              int num_ranks = 1) {
  ModelConfig config = load_model_config(dir);
  config.load_format = format;
  return load_weights(dir, config, shard_model(config, rank, num_ranks));
}

std::vector<const ops::PackedMatrix*> matrices_of(const Weights& weights) {
  std::vector<const ops::PackedMatrix*> all = {&weights.head, &weights.per_layer_projection};
  for (const LayerWeights& layer : weights.layers) {
    all.insert(all.end(), {&layer.qkv, &layer.q_b, &layer.o, &layer.gate_up, &layer.down});
    all.insert(all.end(), {&layer.shared_gate_up, &layer.shared_down});
    all.insert(all.end(), {&layer.per_layer_gate, &layer.per_layer_projection});
  }
  std::erase_if(all, [](const ops::PackedMatrix* matrix) { return matrix->n_out() == 0; });
  return all;
}

void expect_same_matrices(const Weights& a, const Weights& b) {
  const auto left = matrices_of(a);
  const auto right = matrices_of(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_TRUE(left[i]->is_quantized() && right[i]->is_quantized()) << i;
    // A group of 128 of fewer inputs is one of all of them: the same bits under another name.
    EXPECT_EQ(left[i]->quant_format().bits, right[i]->quant_format().bits) << i;
    ASSERT_EQ(left[i]->num_bytes(), right[i]->num_bytes()) << i;
    EXPECT_EQ(std::memcmp(left[i]->data(), right[i]->data(), left[i]->num_bytes()), 0) << i;
  }
}

const std::vector<std::string> kModels = {
    "llama-tied-f32", "qwen2-tied-bf16", "llama-bias-f16", "mistral-window-sharded", "qwen3-bf16"};
// The last three have them in one tensor, gpt_oss turned over.
const std::vector<std::string> kModelsWithExperts = {"mixtral-bf16",
                                                     "qwen2_moe-f16",
                                                     "qwen3_moe-bf16",
                                                     "glm4_moe-bf16",
                                                     "minimax_m2-bf16",
                                                     "deepseek_v3-bf16",
                                                     "granitemoe-bf16",
                                                     "gemma4-experts-bf16",
                                                     "gpt_oss-bf16"};

// Of every family, on one rank or the second of two.
TEST(Quantize, AFolderHoldsTheBitsThatLoadingMakes) {
  for (const std::string& name : model_names(golden_dir())) {
    const ModelConfig config = load_model_config(golden_dir() / name);
    if (config.is_quantized()) continue;
    for (const int num_ranks : {1, config.head_dim % 8 == 0 ? 2 : 1}) {
      SCOPED_TRACE(name);
      const TempDir dir;
      const auto output = dir.path() / "out";
      quantize_folder(golden_dir() / name, output, {.packed = num_ranks == 2}, {});
      const auto expected = load(golden_dir() / name, kInt8, num_ranks - 1, num_ranks);
      const auto got = load(output, {}, num_ranks - 1, num_ranks);
      expect_same_matrices(*got, *expected);
      EXPECT_EQ(got->embedding_dtype, expected->embedding_dtype);
      EXPECT_EQ(got->layers[0].attn_norm, expected->layers[0].attn_norm);
      EXPECT_EQ(got->layers[0].qkv_bias, expected->layers[0].qkv_bias);
      for (size_t l = 0; l < got->layers.size(); ++l) {
        const ops::PackedMatrix& router = got->layers[l].router;
        EXPECT_EQ(router.dtype(), ops::DType::kF32);
        ASSERT_EQ(router.num_bytes(), expected->layers[l].router.num_bytes());
        if (router.n_out() == 0) continue;
        EXPECT_EQ(std::memcmp(router.data(), expected->layers[l].router.data(), router.num_bytes()),
                  0);
      }
    }
  }
}

TEST(Quantize, GroupsOfOtherSizesAndChannels) {
  for (const int32_t group : {0, 32, 64, 256}) {
    const TempDir dir;
    const auto output = dir.path() / "out";
    quantize_folder(golden_dir() / "llama-untied-bf16", output, {.group_size = group}, {});
    const auto expected = load(golden_dir() / "llama-untied-bf16", {8, group});
    const auto got = load(output, {});
    // A group of 256 inputs of fewer is one of all inputs: the same bits under another name.
    for (size_t i = 0; i < matrices_of(*got).size(); ++i) {
      const ops::PackedMatrix& a = *matrices_of(*got)[i];
      const ops::PackedMatrix& b = *matrices_of(*expected)[i];
      ASSERT_EQ(a.num_bytes(), b.num_bytes());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.num_bytes()), 0) << group;
    }
  }
}

// Of any sharding: a shard's rows and columns are those of the whole model's matrices.
TEST(Quantize, ShardsHaveTheValuesOfTheWhole) {
  const auto dir = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "models" / "embedded" / "draft";
  const ModelConfig config = load_model_config(dir);
  const auto whole = load(dir, kInt8);
  const auto row_of = [](const ops::PackedMatrix& matrix, int64_t row) {
    std::vector<float> values(static_cast<size_t>(matrix.n_in()));
    matrix.dequantize_row(row, values.data());
    return values;
  };
  ModelConfig quantized = config;
  quantized.load_format = kInt8;
  int64_t column = 0;
  int64_t num_cut_groups = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Range ffn = shard_model(quantized, rank, 2).ffn;
    const auto part = load(dir, kInt8, rank, 2);
    const ops::PackedMatrix& down = part->layers[1].down;
    EXPECT_EQ(down.in_begin(), ffn.begin);
    num_cut_groups += ffn.begin % 128 != 0 ? 1 : 0;
    for (int64_t row = 0; row < down.n_out(); ++row) {
      const auto got = row_of(down, row);
      const auto expected = row_of(whole->layers[1].down, row);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + ffn.begin)) << row;
    }
    column += down.n_in();
  }
  EXPECT_EQ(column, config.ffn_dim);
  EXPECT_GT(num_cut_groups, 0);
}

TEST(Quantize, LogitsStayNear) {
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 40; ++i) text.push_back(3 + i * 37 % 250);
  for (const std::string& name : kModels) {
    ModelConfig config = load_model_config(golden_dir() / name);
    LoneModel exact(config, golden_dir() / name, ops::best_isa());
    config.load_format = kInt8;
    LoneModel rounded(config, golden_dir() / name, ops::best_isa());
    const double error =
        relative_rms(rounded.run(text, 0, block_ids(0, 8)), exact.run(text, 0, block_ids(0, 8)));
    EXPECT_LE(error, 0.06) << name;
    EXPECT_GE(error, 1e-4) << name;
  }
}

// Of experts in one tensor and of transposed matrices, after the way through a folder.
TEST(Quantize, LogitsOfFoldersStayNear) {
  for (const char* name : {"granitemoe-bf16", "gemma4-experts-bf16", "gpt_oss-bf16", "gpt2-bf16"}) {
    const std::vector<int32_t> text = {3, 40, 17, 14, 21, 8, 45, 2, 39, 26, 13, 20, 37, 44};
    LoneModel exact(golden_dir() / name, ops::best_isa());
    const auto expected = exact.run(text, 0, block_ids(0, 8));
    for (const int32_t bits : {8, 4}) {
      const TempDir dir;
      const QuantizeOptions options = {.bits = bits, .group_size = 32, .packed = bits == 4};
      quantize_folder(golden_dir() / name, dir.path() / "out", options, {});
      LoneModel rounded(dir.path() / "out", ops::best_isa());
      const double error = relative_rms(rounded.run(text, 0, block_ids(0, 8)), expected);
      EXPECT_LE(error, bits == 8 ? 0.1 : 0.7) << name;  // of other weights: 1.4
      EXPECT_GE(error, bits == 8 ? 1e-4 : 1e-2) << name;
    }
  }
}

TEST(Quantize, WritesWhatItSaysAndCopiesTheRest) {
  const TempDir dir;
  const TempDir source;
  for (const auto& entry : std::filesystem::directory_iterator(golden_dir() / "qwen2-tied-bf16")) {
    std::filesystem::copy(entry.path(), source.path() / entry.path().filename());
  }
  source.write("tokenizer.json", "{\"text\": 1}");
  source.write("pytorch_model.bin", "not copied");
  const auto output = dir.path() / "deep" / "out";
  uint64_t last = 0;
  uint64_t whole = 0;
  quantize_folder(
      source.path(), output, {.max_file_bytes = 40'000}, [&](uint64_t done, uint64_t all) {
        EXPECT_GT(done, last);
        last = done;
        whole = all;
      });
  EXPECT_EQ(last, whole);
  EXPECT_TRUE(std::filesystem::exists(output / "model.safetensors.index.json"));
  EXPECT_EQ(read_bytes(output / "tokenizer.json"), "{\"text\": 1}");
  EXPECT_FALSE(std::filesystem::exists(output / "pytorch_model.bin"));
  const auto json = nlohmann::json::parse(read_bytes(output / "config.json"));
  EXPECT_EQ(json.at("tie_word_embeddings"), false);
  const auto& quantization = json.at("quantization_config");
  EXPECT_EQ(quantization.at("quant_method"), "compressed-tensors");
  EXPECT_EQ(quantization.at("format"), "int-quantized");
  const auto& weights = quantization.at("config_groups").at("group_0").at("weights");
  EXPECT_EQ(weights.at("num_bits"), 8);
  EXPECT_EQ(weights.at("group_size"), 128);
  const Checkpoint checkpoint(output);
  const auto head = checkpoint.find("lm_head.weight");
  ASSERT_NE(head.info, nullptr);
  EXPECT_EQ(head.info->type_name, "I8");
  EXPECT_EQ(checkpoint.find("model.embed_tokens.weight").info->type_name, "BF16");
  EXPECT_EQ(checkpoint.find("model.layers.0.mlp.up_proj.weight_scale").info->type_name, "F32");
  EXPECT_EQ(checkpoint.find("model.layers.0.self_attn.q_proj.bias").info->type_name, "BF16");
}

// Rows of the matrices against those of the floats they were made from.
TEST(Quantize, FourBitsAreNearTheFloatsAndKeepFloat16Scales) {
  const auto model = embedded_target();
  const auto floats = load(model, {});
  for (const int32_t group : {32, 128}) {
    const TempDir dir;
    quantize_folder(
        model, dir.path() / "out", {.bits = 4, .group_size = group, .packed = true}, {});
    const auto integers = load(dir.path() / "out", {});
    for (size_t i = 0; i < matrices_of(*integers).size(); ++i) {
      const ops::PackedMatrix& got = *matrices_of(*integers)[i];
      const ops::PackedMatrix& expected = *matrices_of(*floats)[i];
      EXPECT_EQ(got.quant_format(),
                (ops::QuantFormat{4, group, false, ops::QuantScales::kFloat16}));
      std::vector<float> got_row(static_cast<size_t>(got.n_in()));
      std::vector<float> row(got_row.size());
      double error = 0;
      for (int64_t out = 0; out < got.n_out(); ++out) {
        got.read_row(out, got_row.data());
        expected.read_row(out, row.data());
        error += relative_rms(got_row, row) / static_cast<double>(got.n_out());
      }
      EXPECT_LE(error, group == 32 ? 0.085 : 0.11) << i;
      EXPECT_GE(error, 0.05) << i;
    }
  }
}

// Every row of every expert; between experts there are rows of zeros.
TEST(Quantize, FourBitsOfExpertsAreNearTheFloats) {
  for (const std::string& name : kModelsWithExperts) {
    const auto floats = load(golden_dir() / name, {});
    const TempDir dir;
    quantize_folder(
        golden_dir() / name, dir.path() / "out", {.bits = 4, .group_size = 32, .packed = true}, {});
    const auto integers = load(dir.path() / "out", {});
    int64_t num_rows = 0;
    for (size_t l = 0; l < floats->layers.size(); ++l) {
      if (!floats->layers[l].has_experts()) continue;
      for (const auto matrix : {&LayerWeights::gate_up, &LayerWeights::down}) {
        const ops::PackedMatrix& got = integers->layers[l].*matrix;
        const ops::PackedMatrix& expected = floats->layers[l].*matrix;
        EXPECT_EQ(got.quant_format().bits, 4);
        std::vector<float> got_row(static_cast<size_t>(got.n_in()));
        std::vector<float> row(got_row.size());
        for (int64_t out = 0; out < got.n_out(); ++out) {
          expected.read_row(out, row.data());
          if (std::all_of(row.begin(), row.end(), [](float x) { return x == 0; })) continue;
          got.read_row(out, got_row.data());
          EXPECT_LE(relative_rms(got_row, row), 0.15) << name << " row " << out;
          ++num_rows;
        }
      }
    }
    EXPECT_GT(num_rows, 100) << name;
  }
}

TEST(Quantize, TheFolderOfExpertsSaysWhatItLeavesInFloats) {
  const TempDir dir;
  quantize_folder(golden_dir() / "qwen2_moe-bf16", dir.path() / "out", {.keep_head = true}, {});
  const auto json = nlohmann::json::parse(read_bytes(dir.path() / "out" / "config.json"));
  const auto expected = nlohmann::json::array(
      {"lm_head", R"(re:.*\.mlp\.gate$)", R"(re:.*\.mlp\.shared_expert_gate$)"});
  EXPECT_EQ(json.at("quantization_config").at("ignore"), expected);
  const Checkpoint checkpoint(dir.path() / "out");
  const std::string layer = "model.layers.1.mlp.";
  EXPECT_EQ(checkpoint.find(layer + "gate.weight").info->type_name, "BF16");
  EXPECT_EQ(checkpoint.find(layer + "shared_expert_gate.weight").info->type_name, "BF16");
  EXPECT_EQ(checkpoint.find(layer + "shared_expert.up_proj.weight").info->type_name, "I8");
  EXPECT_EQ(checkpoint.find(layer + "experts.7.down_proj.weight").info->type_name, "I8");
}

TEST(Quantize, ExpertsInOneTensorBecomeOneMatrixOfOutputsAndInputs) {
  const TempDir dir;
  const Checkpoint from(golden_dir() / "gpt_oss-bf16");
  const auto floats = from.find("model.layers.0.mlp.experts.down_proj").info->shape;
  quantize_folder(golden_dir() / "gpt_oss-bf16", dir.path() / "out", {}, {});
  const Checkpoint checkpoint(dir.path() / "out");
  const TensorInfo& down = *checkpoint.find("model.layers.0.mlp.experts.down_proj.weight").info;
  EXPECT_EQ(down.type_name, "I8");
  EXPECT_EQ(down.shape, (std::vector<int64_t>{floats[0] * floats[2], floats[1]}));
  EXPECT_EQ(checkpoint.find("model.layers.0.mlp.experts.down_proj_bias").info->type_name, "BF16");
}

TEST(Quantize, AKeptHeadStaysTied) {
  const TempDir dir;
  const auto output = dir.path() / "out";
  quantize_folder(golden_dir() / "qwen2-tied-bf16", output, {.keep_head = true}, {});
  EXPECT_TRUE(load_model_config(output).tied_head);
  const auto weights = load(output, {});
  EXPECT_FALSE(weights->head.is_quantized());
  EXPECT_TRUE(weights->layers[0].qkv.is_quantized());
  // The option rounds what the file has in floats.
  EXPECT_TRUE(load(output, kInt8)->head.is_quantized());
}

template <typename Action>
void expect_error(const Action& action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "nothing was refused; expected: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Quantize, Refusals) {
  const TempDir dir;
  const auto output = dir.path() / "out";
  const auto model = golden_dir() / "llama-tied-f32";
  const auto mxfp4 = golden_dir().parent_path() / "quantized" / "mxfp4";
  quantize_folder(model, output, {}, {});
  expect_error([&] { quantize_folder(model, output, {}, {}); }, "is not empty");
  expect_error([&] { quantize_folder(output, dir.path() / "again", {}, {}); },
               "is quantised already");
  expect_error([&] { quantize_folder(model, dir.path() / "odd", {.group_size = 48}, {}); },
               "groups of 48 inputs cannot be run");
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "odd"));
  expect_error([&] { quantize_folder(mxfp4, dir.path() / "odd", {}, {}); }, "is quantised already");
  expect_error([] { load_format("int3"); }, "quantization must be none, int8 or fp8");
}

TEST(Quantize, HeadsThatCannotBeCutAreRefused) {
  ModelConfig config = load_model_config(golden_dir() / "llama-untied-bf16");
  config.head_dim = 12;
  config.load_format = kInt8;
  EXPECT_NO_THROW(shard_model(config, 0, 1));
  expect_error([&] { shard_model(config, 0, 2); }, "only heads of a multiple of 8");
  expect_error([&] { shard_model(config, 0, 1, Numerics::kStrict); }, "only heads of a multiple");
}

// A copy of a golden model whose tensors a test may spoil.
struct Tensor {
  PlannedTensor plan;
  std::vector<std::byte> bytes;
};

class Damaged {
 public:
  explicit Damaged(const std::string& name)
      : from_(std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests" / "golden" / "quantized" /
              name) {
    const SafetensorsFile file(from_ / "model.safetensors");
    for (const auto& [tensor, info] : file.tensors()) {
      Tensor& copy = tensors_[tensor];
      copy.plan = {tensor, info.type_name, info.shape};
      copy.bytes.resize(copy.plan.num_bytes());
      file.read(info, 0, copy.bytes.data(), copy.bytes.size());
    }
  }

  Tensor& operator[](const std::string& name) { return tensors_.at(name); }
  void erase(const std::string& name) { ASSERT_EQ(tensors_.erase(name), 1u); }

  void expect_refused(const std::string& sentence) const {
    const TempDir dir;
    std::filesystem::copy(from_ / "config.json", dir.path() / "config.json");
    std::vector<PlannedTensor> plan;
    for (const auto& [name, tensor] : tensors_) plan.push_back(tensor.plan);
    CheckpointWriter writer(dir.path(), plan);
    for (const auto& [name, tensor] : tensors_) writer.append(name, tensor.bytes);
    writer.finish();
    expect_error([&] { load(dir.path(), {}); }, sentence);
  }

 private:
  std::filesystem::path from_;
  std::map<std::string, Tensor> tensors_;
};

void set_word(Tensor& tensor, size_t index, int32_t value) {
  std::memcpy(tensor.bytes.data() + 4 * index, &value, sizeof(value));
}

TEST(QuantizedFiles, DamagedGptqIsRefused) {
  const std::string up = "model.layers.0.mlp.up_proj.";
  const auto refused = [](const auto& spoil, const std::string& sentence) {
    Damaged model("gptq-128");
    spoil(model);
    model.expect_refused(sentence);
  };
  refused([&](Damaged& m) { m.erase(up + "qzeros"); },
          "tensor \"" + up + "qzeros\" is missing; expected in shape [2, 16]");
  refused([&](Damaged& m) { m.erase(up + "scales"); }, "scales\" is missing");
  refused(
      [&](Damaged& m) {
        m[up + "qweight"].plan.shape = {64, 64};
      },
      "has shape [64, 64] but config.json asks for [32, 128]");
  refused([&](Damaged& m) { m[up + "qweight"].plan.type_name = "F32"; }, "is of type F32, not I32");
  refused([&](Damaged& m) { m[up + "scales"].plan.type_name = "I16"; },
          "is of type I16, not F32, BF16 or F16");
  refused([&](Damaged& m) { set_word(m[up + "g_idx"], 7, 2); },
          "names group 2 for input 7; there are 2 groups");
  refused([&](Damaged& m) { set_word(m[up + "g_idx"], 0, -1); }, "names group -1 for input 0");
  refused([&](Damaged& m) { m[up + "scales"].bytes[1] = std::byte{0x7C}; },
          "holds NaN or infinity");
  refused([&](Damaged& m) { m[up + "g_idx"].plan.type_name = "F32"; }, "is of type F32, not I32");
}

TEST(QuantizedFiles, DamagedMxfp4IsRefused) {
  const std::string down = "model.layers.0.mlp.experts.down_proj_";
  const auto refused = [](const auto& spoil, const std::string& sentence) {
    Damaged model("mxfp4");
    spoil(model);
    model.expect_refused(sentence);
  };
  refused([&](Damaged& m) { m.erase(down + "blocks"); }, "down_proj.weight\" is missing");
  refused([&](Damaged& m) { m.erase(down + "scales"); },
          "tensor \"" + down + "scales\" is missing; expected in shape [4, 32, 3]");
  refused([&](Damaged& m) { m.erase(down + "bias"); }, "bias\" is missing");
  refused(
      [&](Damaged& m) {
        m[down + "blocks"].plan.shape = {8, 16, 3, 16};
        m[down + "scales"].plan.shape = {8, 48};
      },
      "scales\": has shape [8, 48] but config.json asks for [8, 16, 3]");
  refused(
      [&](Damaged& m) {
        m[down + "blocks"].plan.shape = {4, 16, 3, 32};
      },
      "has shape [4, 16, 3, 32] but config.json asks for [4, 32, 3, 16]");
  refused([&](Damaged& m) { m[down + "blocks"].plan.type_name = "I8"; }, "is of type I8, not U8");
  refused([&](Damaged& m) { m[down + "scales"].bytes[5] = std::byte{255}; }, "holds NaN");
}

TEST(QuantizedFiles, DamagedCompressedTensorsAreRefused) {
  const std::string down = "model.layers.0.mlp.down_proj.";
  const auto refused = [](const char* name, const auto& spoil, const std::string& sentence) {
    Damaged model(name);
    spoil(model);
    model.expect_refused(sentence);
  };
  refused(
      "ct-int8-group", [&](Damaged& m) { m.erase(down + "weight_scale"); }, "is missing");
  refused(
      "ct-int8-channel",
      [&](Damaged& m) {
        m[down + "weight"].plan.shape = {64, 320};
      },
      "has shape [64, 320]");
  refused(
      "ct-pack4-zeros", [&](Damaged& m) { m.erase(down + "weight_zero_point"); }, "is missing");
  refused(
      "ct-pack4",
      [&](Damaged& m) { m[down + "weight_packed"].plan.type_name = "F32"; },
      "is of type F32, not I32");
}

}  // namespace
}  // namespace outrider
