// GGUF files of all families as llama.cpp's own converter writes them, against the folders they are
// made of: tests/golden/gguf/recipes.json, by tools/make_gguf_recipes.py, says which metadata its
// file has, and of each element of its tensors which one of the folder it is.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "models/checkpoint/safetensors.h"
#include "models/gguf/gguf_blocks.h"
#include "tests/models/gguf_writer.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;
using Json = nlohmann::json;

const Json& recipes() {
  static const Json all = Json::parse(read_bytes(std::filesystem::path(OUTRIDER_SOURCE_DIR) /
                                                 "tests" / "golden" / "gguf" / "recipes.json"));
  return all.at("cases");
}

// The golden folder with the recipe's changes to config.json and to names of tensors.
void write_folder(const Json& recipe, const TempDir& to) {
  const auto folder = golden_dir() / recipe.at("folder").get<std::string>();
  Json config = Json::parse(read_bytes(folder / "config.json"));
  if (recipe.contains("config")) config.merge_patch(recipe.at("config"));
  to.write("config.json", config.dump());
  std::string weights = read_bytes(folder / "model.safetensors");
  if (recipe.contains("rename")) {
    for (const Json& pair : recipe.at("rename")) {
      const auto from = pair[0].get<std::string>();
      for (size_t at = weights.find(from); at != std::string::npos; at = weights.find(from, at + 1))
        weights.replace(at, from.size(), pair[1].get<std::string>());
    }
  }
  to.write("model.safetensors", weights);
}

// All elements of a tensor as floats.
std::vector<float> elements(const Checkpoint& checkpoint, const std::string& name) {
  const auto [file, info] = checkpoint.find(name);
  std::vector<std::byte> raw(info->end - info->begin);
  file->read(*info, 0, raw.data(), raw.size());
  return widen(raw, *info->dtype);
}

void write_key(const std::string& key, const Json& value, GgufWriter& gguf) {
  if (value.is_boolean()) return gguf.flag(key, value.get<bool>());
  if (value.is_number_integer()) return gguf.number(key, value.get<uint32_t>());
  if (value.is_number()) return gguf.real(key, value.get<float>());
  if (value.is_string()) return gguf.text(key, value.get<std::string>());
  std::vector<uint8_t> flags;
  for (const Json& flag : value) flags.push_back(flag.get<bool>() ? 1 : 0);
  gguf.numbers(key, 7, flags);
}

std::vector<float> values_of(const Json& tensor, const Checkpoint& checkpoint) {
  if (tensor.contains("values")) return tensor.at("values").get<std::vector<float>>();
  const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
  const int64_t n_columns = shape.size() == 1 ? 1 : shape.back();
  const float added = tensor.value("added", 0.0f);
  std::vector<float> values;
  for (const Json& run : tensor.at("runs")) {
    const std::vector<float> source = elements(checkpoint, run[0].get<std::string>());
    const auto first = run[1].get<int64_t>();
    for (int64_t row = 0; row < run[4].get<int64_t>(); ++row) {
      const int64_t begin = first + row * run[3].get<int64_t>();
      for (int64_t i = 0; i < n_columns; ++i)
        values.push_back(source.at(static_cast<size_t>(begin + i * run[2].get<int64_t>())) + added);
    }
  }
  return values;
}

// Blocks of MXFP4, and the floats they stand for; none where a scale is no normal float.
std::pair<std::string, std::vector<float>> mxfp4_blocks(size_t num_values) {
  const GgufType& type = *gguf_type(39);
  std::string blocks;
  for (size_t i = 0; i < num_values / 32 * 17; ++i)
    blocks.push_back(i % 51 == 0   ? '\1'
                     : i % 17 == 0 ? static_cast<char>(120 + i % 3)
                                   : static_cast<char>(i * 37 + i / 17));
  std::vector<float> values(num_values);
  for (size_t b = 0; b < num_values / 32; ++b)
    dequantize(type, reinterpret_cast<const uint8_t*>(blocks.data()) + b * 17, &values[b * 32]);
  for (float& value : values)
    if (std::abs(value) < 1e-30f) value = 0.0f;
  return {blocks, values};
}

// What becomes of the experts' gate and up.
enum class Experts { kConverted, kBlocks, kFloatsOfBlocks };

std::string as_gguf(const Json& recipe,
                    const TempDir& folder,
                    Experts experts = Experts::kConverted) {
  const Checkpoint checkpoint(folder.path(), "");
  GgufWriter gguf;
  for (const auto& [key, value] : recipe.at("keys").items()) write_key(key, value, gguf);
  for (const Json& tensor : recipe.at("tensors")) {
    const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
    std::vector<float> values = values_of(tensor, checkpoint);
    const auto name = tensor.at("name").get<std::string>();
    const bool is_changed =
        name.ends_with("ffn_gate_exps.weight") || name.ends_with("ffn_up_exps.weight");
    std::string blocks;
    if (is_changed && experts != Experts::kConverted)
      std::tie(blocks, values) = mxfp4_blocks(values.size());
    const std::string floats(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof(float));
    const bool as_blocks = is_changed && experts == Experts::kBlocks;
    gguf.tensor(name, shape, as_blocks ? 39 : kGgufF32, as_blocks ? blocks : floats);
  }
  return gguf.whole();
}

std::vector<float> logits_of(const std::filesystem::path& model) {
  std::vector<int32_t> text(40);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(3 + 7 * i % 50);
  LoneModel lone(model, ops::best_isa());
  return lone.run(text, 0, block_ids(0, 4));
}

class GgufRecipe : public testing::TestWithParam<size_t> {};

TEST_P(GgufRecipe, HasTheLogitsOfItsFolder) {
  const Json& recipe = recipes()[GetParam()];
  TempDir dir;
  write_folder(recipe, dir);
  dir.write("model.gguf", as_gguf(recipe, dir));
  const auto expected = logits_of(dir.path());
  const auto got = logits_of(dir.path() / "model.gguf");
  ASSERT_EQ(got.size(), expected.size());
  float most = 0.0f;
  for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(got[i] - expected[i]));
  // Factors of rope have lost bits in the file.
  EXPECT_LE(most, recipe.at("tensors")[0].contains("values") ? 1e-5f : 0.0f);
}

// As the config.json of the folder that it was made of would.
TEST(GgufRecipes, ConfigNamesTheTypeOfTheWeights) {
  const Json& recipe = recipes()[0];
  for (const auto& [type, dtype] : {std::pair{kGgufF32, ops::DType::kF32},
                                    {kGgufF16, ops::DType::kF16},
                                    {kGgufBF16, ops::DType::kBF16}}) {
    GgufWriter gguf;
    for (const auto& [key, value] : recipe.at("keys").items()) write_key(key, value, gguf);
    for (const Json& tensor : recipe.at("tensors")) {
      const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
      int64_t num_bytes = gguf_type(type)->block_bytes;
      for (const int64_t size : shape) num_bytes *= size;
      const std::string zeros(static_cast<size_t>(num_bytes), 0);
      gguf.tensor(tensor.at("name").get<std::string>(), shape, type, zeros);
    }
    TempDir dir;
    dir.write("model.gguf", gguf.whole());
    EXPECT_EQ(load_model_config(dir.path() / "model.gguf").dtype, dtype);
  }
}

// Layers that predict more tokens (MTP) count among a file's blocks.
TEST(GgufRecipes, LayersThatPredictMoreTokensAreLeftOut) {
  const auto is_it = [](const Json& recipe) { return recipe.at("folder") == "glm4_moe-bf16"; };
  Json recipe = *std::find_if(recipes().begin(), recipes().end(), is_it);
  const std::string block =
      fmt::format("blk.{}.", recipe.at("keys").at("glm4moe.block_count").get<int>() - 1);
  for (const char* own : {"nextn.eh_proj.weight", "attn_norm.weight"})
    recipe["tensors"].push_back({{"name", block + own}, {"shape", {2}}, {"values", {7.0, 7.0}}});
  TempDir dir;
  write_folder(recipe, dir);
  dir.write("model.gguf", as_gguf(recipe, dir));
  const auto expected = logits_of(dir.path());
  testing::internal::CaptureStderr();
  EXPECT_EQ(logits_of(dir.path() / "model.gguf"), expected);
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("2 tensors are not loaded"), std::string::npos) << line;
}

void expect_same_rows(const ops::PackedMatrix& got, const ops::PackedMatrix& expected) {
  ASSERT_EQ(got.n_out(), expected.n_out());
  ASSERT_EQ(got.n_in(), expected.n_in());
  std::vector<float> row(static_cast<size_t>(got.n_in()));
  std::vector<float> other(row.size());
  for (int64_t out = 0; out < got.n_out(); ++out) {
    got.read_row(out, row.data());
    expected.read_row(out, other.data());
    ASSERT_EQ(row, other) << out;
  }
}

TEST_P(GgufRecipe, HasTheShardsOfItsFolder) {
  const Json& recipe = recipes()[GetParam()];
  TempDir dir;
  write_folder(recipe, dir);
  dir.write("model.gguf", as_gguf(recipe, dir));
  for (int rank = 0; rank < 2; ++rank) {
    const auto load = [rank](const std::filesystem::path& model) {
      const ModelConfig config = load_model_config(model);
      return load_weights(model, config, shard_model(config, rank, 2));
    };
    const auto expected = load(dir.path());
    const auto got = load(dir.path() / "model.gguf");
    expect_same_rows(got->head, expected->head);
    for (size_t l = 0; l < expected->layers.size(); ++l) {
      const LayerWeights& own = got->layers[l];
      const LayerWeights& other = expected->layers[l];
      for (const auto matrix : {&LayerWeights::qkv,
                                &LayerWeights::q_b,
                                &LayerWeights::kv_b_keys,
                                &LayerWeights::kv_b_values,
                                &LayerWeights::o,
                                &LayerWeights::gate_up,
                                &LayerWeights::down,
                                &LayerWeights::router,
                                &LayerWeights::shared_gate_up,
                                &LayerWeights::shared_down})
        expect_same_rows(own.*matrix, other.*matrix);
      for (const auto vector : {&LayerWeights::qkv_bias,
                                &LayerWeights::q_norm,
                                &LayerWeights::k_norm,
                                &LayerWeights::sinks,
                                &LayerWeights::o_bias,
                                &LayerWeights::gate_up_bias,
                                &LayerWeights::down_bias,
                                &LayerWeights::router_bias,
                                &LayerWeights::router_correction})
        EXPECT_EQ(own.*vector, other.*vector);
      for (const auto norm : {&LayerWeights::attn_norm,
                              &LayerWeights::attn_post_norm,
                              &LayerWeights::mlp_norm,
                              &LayerWeights::mlp_post_norm})
        EXPECT_EQ(own.*norm, other.*norm);
    }
  }
}

// The converter's own file of gpt-oss in MXFP4.
TEST(GgufExperts, OfMxfp4HaveTheLogitsOfTheirFolder) {
  const auto golden = golden_dir().parent_path();
  EXPECT_EQ(logits_of(golden / "gguf" / "mxfp4.gguf"), logits_of(golden / "quantized" / "mxfp4"));
}

// Rows of gate and up lie apart in the file, and take turns or not in memory.
TEST(GgufExperts, InBlocksAreTheIntegersOfTheFile) {
  for (const Json& recipe : recipes()) {
    const std::string name = recipe.at("folder");
    if (name != "gpt_oss-bf16" && name != "mixtral-bf16" && name != "granitemoe-bf16") continue;
    SCOPED_TRACE(name);
    TempDir dir;
    write_folder(recipe, dir);
    dir.write("blocks.gguf", as_gguf(recipe, dir, Experts::kBlocks));
    dir.write("floats.gguf", as_gguf(recipe, dir, Experts::kFloatsOfBlocks));
    const auto load = [&](const char* file) {
      const ModelConfig config = load_model_config(dir.path() / file);
      return load_weights(dir.path() / file, config, shard_model(config, 0, 1));
    };
    const auto blocks = load("blocks.gguf");
    const auto floats = load("floats.gguf");
    const ops::PackedMatrix& packed = blocks->layers[1].gate_up;
    ASSERT_TRUE(packed.is_quantized());
    expect_same_rows(packed, floats->layers[1].gate_up);
    for (const float logit : logits_of(dir.path() / "blocks.gguf"))
      ASSERT_TRUE(std::isfinite(logit));
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GgufRecipe,
                         testing::Range<size_t>(0, recipes().size()),
                         [](const auto& test_info) {
                           std::string name = recipes()[test_info.param].at("folder");
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
