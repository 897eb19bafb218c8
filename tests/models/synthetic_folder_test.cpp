// A synthetic folder is what the generator makes in memory: the same bits, through the normal
// loader; its config and tokenizer are read back whole; the draft is the first layers.
#include <gtest/gtest.h>

#include <set>

#include "models/checkpoint/safetensors.h"
#include "models/synthetic/folder.h"
#include "models/synthetic/tokenizer.h"
#include "models/text/tokenizer.h"
#include "runtime/base/error.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

// A named shape with everything made small but the kinds of things it has.
ModelConfig tiny(const std::string& shape) {
  ModelConfig config = first_layers(synthetic_shape(shape), 3);
  config.hidden_dim = 64;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = config.rope.rotary_dim = 16;
  config.ffn_dim = 96;
  config.vocab_size = 600;
  if (config.experts.count > 0) {
    config.experts.count = 8;
    config.experts.per_row = 2;
    config.experts.ffn_dim = 40;
  }
  return config;
}

constexpr SyntheticRecipe kRecipe = {.seed = 7, .epsilon = 0.3};

std::vector<float> logits_of(const ModelConfig& config, std::shared_ptr<const Weights> weights) {
  const std::vector<int32_t> tokens = {1, 300, 599, 301, 40};
  return LoneModel(config, std::move(weights), ops::best_isa()).run(tokens, 0, block_ids(0, 1));
}

class SyntheticFolder : public testing::TestWithParam<const char*> {};

TEST_P(SyntheticFolder, IsTheModelInMemory) {
  for (const ops::DType dtype : {ops::DType::kBF16, ops::DType::kF16, ops::DType::kF32}) {
    const ModelConfig config = tiny(GetParam());
    SyntheticRecipe recipe = kRecipe;
    recipe.dtype = dtype;
    const TempDir dir;
    uint64_t done = 0;
    uint64_t all = 0;
    write_synthetic_folder(dir.path() / "m", config, recipe, [&](uint64_t now, uint64_t total) {
      EXPECT_GT(now, done);
      done = now;
      all = total;
    });
    EXPECT_GT(all, 0u);
    EXPECT_EQ(done, all);
    const ModelConfig loaded = load_model_config(dir.path() / "m");
    EXPECT_EQ(loaded.dtype, dtype);
    const ModelShard shard = shard_model(loaded, 0, 1);
    const auto from_disk = logits_of(loaded, load_weights(dir.path() / "m", loaded, shard));
    const auto in_memory = logits_of(config, synthetic_weights(config, shard, recipe));
    EXPECT_EQ(from_disk, in_memory);
    std::set<float> values(in_memory.begin(), in_memory.end());
    EXPECT_GT(values.size(), 1000u);
    recipe.epsilon = 0.31;
    EXPECT_NE(in_memory, logits_of(config, synthetic_weights(config, shard, recipe)));
  }
}

TEST_P(SyntheticFolder, ItsConfigIsReadBack) {
  const ModelConfig config = tiny(GetParam());
  const TempDir dir;
  write_synthetic_folder(dir.path(), config, kRecipe);
  const ModelConfig loaded = load_model_config(dir.path());
  EXPECT_EQ(loaded.model_type, config.model_type);
  EXPECT_EQ(loaded.n_layers, config.n_layers);
  EXPECT_EQ(loaded.n_kv_heads, config.n_kv_heads);
  EXPECT_EQ(loaded.head_dim, config.head_dim);
  EXPECT_EQ(loaded.ffn_dim, config.ffn_dim);
  EXPECT_EQ(loaded.vocab_size, config.vocab_size);
  EXPECT_EQ(loaded.max_positions, config.max_positions);
  EXPECT_EQ(loaded.norm_eps, config.norm_eps);
  EXPECT_EQ(loaded.qk_norm, config.qk_norm);
  EXPECT_EQ(loaded.tied_head, config.tied_head);
  EXPECT_EQ(loaded.sliding_window, 0);
  EXPECT_EQ(loaded.rope.theta, config.rope.theta);
  EXPECT_EQ(loaded.rope.scaling, config.rope.scaling);
  EXPECT_EQ(loaded.rope.factor, config.rope.factor);
  EXPECT_EQ(loaded.rope.original_max_positions, config.rope.original_max_positions);
  EXPECT_EQ(loaded.experts.count, config.experts.count);
  EXPECT_EQ(loaded.experts.per_row, config.experts.per_row);
  EXPECT_EQ(loaded.experts.ffn_dim, config.experts.ffn_dim);
  EXPECT_EQ(loaded.experts.normalised, config.experts.normalised);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    EXPECT_EQ(loaded.has_experts(layer), config.has_experts(layer));
  }
  EXPECT_EQ(loaded.bos_token_id, kSyntheticBosId);
  EXPECT_EQ(loaded.eos_token_ids, std::vector<int32_t>{kSyntheticEosId});
  EXPECT_EQ(Tokenizer::load(dir.path())->vocab_size(), config.vocab_size);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    SyntheticFolder,
    testing::Values("tinyllama-1.1b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-4b", "qwen3-30b-a3b"));

void expect_first_layers(const ModelConfig& target, size_t tensors_of_last_layer) {
  const ModelConfig draft = first_layers(target, 2);
  const TempDir dir;
  write_synthetic_folder(dir.path() / "target", target, kRecipe);
  write_synthetic_folder(dir.path() / "draft", draft, kRecipe);
  const SafetensorsFile large(dir.path() / "target" / "model.safetensors");
  const SafetensorsFile small(dir.path() / "draft" / "model.safetensors");
  EXPECT_EQ(large.tensors().size(), small.tensors().size() + tensors_of_last_layer);
  for (const auto& [name, info] : small.tensors()) {
    const TensorInfo* other = large.find(name);
    ASSERT_NE(other, nullptr) << name;
    std::string bytes(info.end - info.begin, '\0');
    std::string others(other->end - other->begin, '\1');
    small.read(info, 0, bytes.data(), bytes.size());
    large.read(*other, 0, others.data(), others.size());
    EXPECT_EQ(bytes, others) << name;
  }
  EXPECT_EQ(read_bytes(dir.path() / "target" / "tokenizer.json"),
            read_bytes(dir.path() / "draft" / "tokenizer.json"));
  EXPECT_EQ(load_model_config(dir.path() / "draft").model_type, draft.model_type);
}

TEST(SyntheticFolderFiles, TheDraftIsTheFirstLayers) {
  expect_first_layers(tiny("tinyllama-1.1b"), 9);
}

TEST(SyntheticFolderFiles, TheDraftOfAModelWithExpertsHasNone) {
  const ModelConfig target = tiny("qwen3-30b-a3b");
  expect_first_layers(target, 8 + 1 + 8 * 3);  // norms and attention, router, experts
  EXPECT_TRUE(target.has_experts(2));
  const ModelConfig draft = synthetic_shape("qwen3-30b-a3b@2");
  EXPECT_EQ(draft.model_type, "qwen3");
  EXPECT_EQ(draft.experts.count, 0);
}

TEST(SyntheticFolderFiles, AreTheSameForASeed) {
  const TempDir dir;
  const ModelConfig config = tiny("qwen3-4b");
  SyntheticRecipe other = kRecipe;
  other.seed = 8;
  write_synthetic_folder(dir.path() / "a", config, kRecipe);
  write_synthetic_folder(dir.path() / "b", config, kRecipe);
  write_synthetic_folder(dir.path() / "c", config, other);
  int num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir.path() / "a")) {
    const auto name = file.path().filename();
    EXPECT_EQ(read_bytes(file.path()), read_bytes(dir.path() / "b" / name)) << name;
    const bool has_weights = name.extension() == ".safetensors";
    EXPECT_EQ(read_bytes(file.path()) != read_bytes(dir.path() / "c" / name), has_weights) << name;
    ++num_files;
  }
  EXPECT_EQ(num_files, 6);
}

TEST(SyntheticFolderFiles, NothingIsOverwritten) {
  const TempDir dir;
  dir.write("notes", "mine");
  EXPECT_THROW(check_new_folder(dir.path()), Error);
  EXPECT_THROW(check_new_folder(dir.path() / "notes"), Error);
  EXPECT_NO_THROW(check_new_folder(dir.path() / "none"));
  EXPECT_THROW(write_synthetic_folder(dir.path(), tiny("qwen3-4b"), kRecipe), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SyntheticTokenizer, EveryTextComesBack) {
  for (const int32_t size : {354, 600, 32'000, 151'936}) {
    const SyntheticTokenizer made = make_synthetic_tokenizer(size, 2048);
    const auto tokenizer =
        Tokenizer::from_json(made.tokenizer_json, made.tokenizer_config_json, "made");
    EXPECT_EQ(tokenizer->vocab_size(), size);
    std::set<std::string> pieces;
    for (int32_t id = 0; id < size; ++id) pieces.insert(tokenizer->token_text(id));
    EXPECT_EQ(pieces.size(), static_cast<size_t>(size)) << "a piece is there twice or empty";
    for (const std::string text : {"babedi kuku  dado.\n\tTHE end?",
                                   " begins with a space",
                                   "caf\xC3\xA9 \xE6\x9D\xB1\xE4\xBA\xAC \xF0\x9F\x8E\x89",
                                   "<s> is no token in a text \xE2\x96\x81",
                                   "x"}) {
      const auto ids = tokenizer->encode(text, {.parse_special_tokens = false});
      EXPECT_EQ(ids.front(), kSyntheticBosId);
      // The mark stands for a space, as in SentencePiece.
      std::string expected = text;
      const size_t mark = expected.find("\xE2\x96\x81");
      if (mark != std::string::npos) expected.replace(mark, 3, " ");
      EXPECT_EQ(tokenizer->decode(ids), expected);
    }
    EXPECT_EQ(tokenizer->eos_id(), kSyntheticEosId);
    EXPECT_TRUE(tokenizer->is_special(0));
    EXPECT_FALSE(tokenizer->is_special(3));
  }
}

// Words of the vocabulary are reached by merging.
TEST(SyntheticTokenizer, WordsAreOneToken) {
  const SyntheticTokenizer made = make_synthetic_tokenizer(32'000, 2048);
  const auto tokenizer =
      Tokenizer::from_json(made.tokenizer_json, made.tokenizer_config_json, "made");
  for (const int32_t id : {554, 600, 10'000, 10'800, 20'600, 31'999}) {
    const std::string piece = tokenizer->token_text(id);
    ASSERT_TRUE(piece.starts_with("\xE2\x96\x81") || id < 20'554) << piece;
    if (!piece.starts_with("\xE2\x96\x81")) continue;
    EXPECT_EQ(tokenizer->encode(piece.substr(3)), (std::vector<int32_t>{kSyntheticBosId, id}));
  }
}

TEST(SyntheticTokenizer, RefusesImpossibleSizes) {
  for (const int32_t size : {0, 2, 259, 353, 2'000'000}) {
    EXPECT_THROW(make_synthetic_tokenizer(size, 2048), Error) << size;
  }
}

// One entry for each token and the two trailing messages: tag, length, bytes.
TEST(SyntheticTokenizer, TheSentencePieceFileHasEveryToken) {
  const std::string bytes = make_synthetic_tokenizer(600, 2048).tokenizer_model;
  int num_pieces = 0;
  int num_others = 0;
  for (size_t at = 0; at < bytes.size();) {
    const auto tag = static_cast<unsigned char>(bytes[at]);
    const auto length = static_cast<unsigned char>(bytes[at + 1]);
    ASSERT_LT(length, 128);
    (tag == 0x0A ? num_pieces : num_others) += 1;
    at += 2 + size_t{length};
    ASSERT_LE(at, bytes.size());
  }
  EXPECT_EQ(num_pieces, 600);
  EXPECT_EQ(num_others, 2);
}

}  // namespace
}  // namespace outrider
