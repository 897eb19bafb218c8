// The forward pass: row invariance (any way to cut a text into steps gives the same bits), sharding
// of the synthetic models, and the 200 greedy tokens of stories260K when that model is there.
#include "models/forward/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "models/synthetic/synthetic.h"
#include "runtime/base/error.h"
#include "runtime/comm/world/world.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

TEST(Transformer, Stories260kWritesTheKnownTokens) {
  const auto data = data_dir();
  if (!data) GTEST_SKIP() << "no real inputs on this machine";
  const auto dir = *data / "models" / "stories260K";
  std::ifstream file(dir / "greedy200.ids.txt");
  std::vector<int32_t> expected{std::istream_iterator<int32_t>(file), {}};
  ASSERT_EQ(expected.size(), 200u);
  for (const ops::Isa isa : available_isas()) {
    LoneModel lone(dir, isa);
    const std::vector<int32_t> bos = {1};
    EXPECT_EQ(lone.greedy(bos, 200, block_ids(3, 20)), expected) << ops::isa_name(isa);
  }
}

std::vector<int32_t> some_text(int32_t count, int32_t vocab, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double spread(std::span<const float> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return static_cast<double>(*high) - *low;
}

TransformerOptions with_kv(ops::KvType type) {
  TransformerOptions options = kOptions;
  options.kv_type = type;
  return options;
}

class RowInvariance : public testing::TestWithParam<std::tuple<std::string, ops::KvType>> {
 protected:
  std::filesystem::path dir() const { return golden_dir() / std::get<0>(GetParam()); }
  TransformerOptions options() const { return with_kv(std::get<1>(GetParam())); }
};

TEST_P(RowInvariance, AnyCutOfATextGivesTheSameBits) {
  for (const ops::Isa isa : available_isas()) {
    LoneModel whole(dir(), isa, 2, options());
    const auto text = some_text(100, whole.config.vocab_size, 1);
    const auto expected = whole.run(text, 0, block_ids(0, 7));
    ASSERT_GT(spread(expected), 1.0);
    for (const size_t chunk :
         {size_t{1}, size_t{2}, size_t{5}, size_t{17}, size_t{33}, size_t{64}}) {
      LoneModel cut(dir(), isa, chunk == 17 ? 3 : 1, options());
      std::vector<float> logits;
      for (size_t begin = 0; begin < text.size(); begin += chunk) {
        const auto piece = std::span(text).subspan(begin, std::min(chunk, text.size() - begin));
        const auto part = cut.run(piece, static_cast<int32_t>(begin), block_ids(20, 7));
        logits.insert(logits.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(same_bits(logits, expected)) << ops::isa_name(isa) << " chunks of " << chunk;
    }
  }
}

TEST_P(RowInvariance, SequencesSharingAStepDoNotTouchEachOther) {
  LoneModel model(dir(), ops::best_isa(), 2, options());
  const int32_t vocab = model.config.vocab_size;
  const auto width = static_cast<size_t>(vocab);
  const auto first = some_text(50, vocab, 2);
  const auto second = some_text(50, vocab, 3);
  const auto first_alone = model.run(first, 0, block_ids(0, 4));
  const auto second_alone = model.run(second, 0, block_ids(4, 4));
  ASSERT_FALSE(same_bits(first_alone, second_alone));

  // Blocks of the two lie between each other and out of order; the cuts differ.
  const std::vector<int32_t> first_blocks = {41, 12, 33, 10};
  const std::vector<int32_t> second_blocks = {11, 40, 13, 32};
  size_t first_done = 0;
  size_t second_done = 0;
  while (first_done < first.size() || second_done < second.size()) {
    Batch batch;
    const size_t first_rows = std::min<size_t>(7, first.size() - first_done);
    const size_t second_rows = std::min<size_t>(12, second.size() - second_done);
    append_rows(batch,
                std::span(first).subspan(first_done, first_rows),
                static_cast<int32_t>(first_done),
                first_blocks);
    append_rows(batch,
                std::span(second).subspan(second_done, second_rows),
                static_cast<int32_t>(second_done),
                second_blocks);
    batch.logit_rows = block_ids(0, static_cast<int32_t>(batch.tokens.size()));
    const auto logits = model.model->forward(batch);
    EXPECT_TRUE(same_bits(logits.first(first_rows * width),
                          std::span(first_alone).subspan(first_done * width, first_rows * width)));
    EXPECT_TRUE(
        same_bits(logits.subspan(first_rows * width),
                  std::span(second_alone).subspan(second_done * width, second_rows * width)));
    first_done += first_rows;
    second_done += second_rows;
  }
}

// Rejected draft rows leave keys behind; computing the positions again must hide them completely.
TEST_P(RowInvariance, RejectedRowsLeaveNoTrace) {
  LoneModel model(dir(), ops::best_isa(), 1, options());
  const auto text = some_text(40, model.config.vocab_size, 4);
  const auto wrong = some_text(9, model.config.vocab_size, 5);
  const auto width = static_cast<size_t>(model.config.vocab_size);
  const auto expected = model.run(text, 0, block_ids(0, 4));
  const auto blocks = block_ids(8, 4);
  model.run(std::span(text).first(20), 0, blocks);
  const auto misled = model.run(wrong, 20, blocks);
  const auto after = model.run(std::span(text).subspan(20), 20, blocks);
  EXPECT_FALSE(same_bits(std::span(misled).first(width), std::span(after).first(width)));
  EXPECT_TRUE(same_bits(after, std::span(expected).subspan(20 * width)));
}

TEST_P(RowInvariance, OnlyTheAskedRowsGetLogits) {
  LoneModel model(dir(), ops::best_isa(), 1, options());
  const auto text = some_text(30, model.config.vocab_size, 6);
  const auto width = static_cast<size_t>(model.config.vocab_size);
  const auto expected = model.run(text, 0, block_ids(0, 4));
  Batch batch;
  const auto blocks = block_ids(4, 4);
  append_rows(batch, text, 0, blocks);
  batch.logit_rows = {3, 17, 29};
  const auto logits = model.model->forward(batch);
  ASSERT_EQ(logits.size(), 3 * width);
  for (size_t i = 0; i < 3; ++i) {
    const auto row = static_cast<size_t>(batch.logit_rows[i]);
    EXPECT_TRUE(same_bits(logits.subspan(i * width, width),
                          std::span(expected).subspan(row * width, width)));
  }
  batch.logit_rows.clear();
  EXPECT_TRUE(model.model->forward(batch).empty());
  EXPECT_TRUE(model.model->forward(Batch{}).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    RowInvariance,
    testing::Combine(testing::Values("llama-tied-f32",
                                     "llama-bias-f16",
                                     "llama-yarn-bf16",
                                     "mistral-window-sharded",
                                     "qwen2-window-f16",
                                     "qwen3-bf16",
                                     "gemma4-k_eq_v-f32",
                                     "gemma4-shared-f16",
                                     "deepseek_v3-bf16"),
                     testing::Values(ops::KvType::kF32, ops::KvType::kBF16, ops::KvType::kInt8)),
    [](const auto& param_info) {
      std::string name = std::get<0>(param_info.param);
      std::replace(name.begin(), name.end(), '-', '_');
      return name + "_" + ops::kv_type_name(std::get<1>(param_info.param));
    });

// Of every kind of attention: shared and latent keys and values, windows, heads by layer.
TEST(Transformer, NarrowKeysAndValuesChangeLogitsALittle) {
  for (const char* name : {"llama-tied-f32",
                           "mistral-window-sharded",
                           "gemma3-f32",
                           "gemma4-k_eq_v-f32",
                           "gemma4-shared-f16",
                           "gpt_oss-bf16",
                           "deepseek_v3-bf16"}) {
    LoneModel exact(golden_dir() / name, ops::best_isa());
    const auto text = some_text(100, exact.config.vocab_size, 8);
    const auto expected = exact.run(text, 0, block_ids(0, 7));
    double last_error = 0;
    for (const ops::KvType type : {ops::KvType::kBF16, ops::KvType::kInt8}) {
      LoneModel narrow(golden_dir() / name, ops::best_isa(), 1, with_kv(type));
      const auto logits = narrow.run(text, 0, block_ids(0, 7));
      double error = 0;
      double total = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        error += std::pow(double{logits[i]} - expected[i], 2);
        total += std::pow(double{expected[i]}, 2);
      }
      const double relative = std::sqrt(error / total);
      EXPECT_GT(relative, 1e-5) << name << ' ' << ops::kv_type_name(type);
      EXPECT_LT(relative, 0.05) << name << ' ' << ops::kv_type_name(type);
      EXPECT_NE(relative, last_error) << name;
      last_error = relative;
    }
  }
}

class Blocks : public testing::TestWithParam<ops::KvType> {};
INSTANTIATE_TEST_SUITE_P(KvTypes,
                         Blocks,
                         testing::Values(ops::KvType::kF32, ops::KvType::kBF16, ops::KvType::kInt8),
                         [](const auto& instance) {
                           return std::string(ops::kv_type_name(instance.param));
                         });

// With scales, where there are any; of latent attention, where values are the keys, too.
TEST_P(Blocks, CopiedAndPoisonedBlocksAreReadAsSuch) {
  for (const char* name : {"llama-untied-bf16", "deepseek_v3-bf16"}) {
    LoneModel model(golden_dir() / name, ops::best_isa(), 1, with_kv(GetParam()));
    const auto text = some_text(20, model.config.vocab_size, 7);
    const std::vector<int32_t> next = {5};
    model.run(text, 0, block_ids(0, 2));
    const auto expected = model.run(next, 20, block_ids(0, 2));
    model.model->copy_block(0, 9);
    model.model->copy_block(1, 4);
    EXPECT_TRUE(same_bits(model.run(next, 20, std::vector<int32_t>{9, 4}), expected)) << name;
    model.model->poison_position(4, 6);  // position 22: nobody has seen it
    EXPECT_TRUE(same_bits(model.run(next, 20, std::vector<int32_t>{9, 4}), expected)) << name;
    model.model->poison_position(4, 2);
    EXPECT_TRUE(std::isnan(model.run(next, 20, std::vector<int32_t>{9, 4})[0])) << name;
    EXPECT_TRUE(same_bits(model.run(next, 20, block_ids(0, 2)), expected)) << name;
    model.model->poison_blocks(std::vector<int32_t>{0});
    EXPECT_TRUE(std::isnan(model.run(next, 20, block_ids(0, 2))[0])) << name;
  }
}

TEST_P(Blocks, ClearedBlocksHideWhatWasInThem) {
  LoneModel model(golden_dir() / "llama-untied-bf16", ops::best_isa(), 1, with_kv(GetParam()));
  const auto text = some_text(20, model.config.vocab_size, 7);
  const auto blocks = block_ids(0, 2);
  model.run(text, 0, blocks);
  const std::vector<int32_t> next = {5};
  const auto with_past = model.run(next, 20, blocks);
  model.model->clear_blocks(blocks);
  const auto cleared = model.run(next, 20, blocks);
  EXPECT_FALSE(same_bits(with_past, cleared));
  const auto fresh = model.run(next, 20, block_ids(30, 2));  // never written
  EXPECT_TRUE(same_bits(cleared, fresh));
}

TEST(Transformer, KvBytesPerBlockCountsBothHalvesOfEveryLayer) {
  const ModelConfig config = synthetic_shape("tinyllama-1.1b");
  const ModelShard whole = shard_model(config, 0, 1);
  const ModelShard quarter = shard_model(config, 3, 4);
  EXPECT_EQ(Transformer::kv_bytes_per_block(config, whole, 16), 2u * 22 * 4 * 16 * 64 * 4);
  EXPECT_EQ(Transformer::kv_bytes_per_block(config, quarter, 16), 2u * 22 * 1 * 16 * 64 * 4);
}

TEST(Transformer, KvBytesPerBlockAreHalfAndAQuarterInNarrowTypes) {
  const ModelConfig config = synthetic_shape("tinyllama-1.1b");
  const ModelShard whole = shard_model(config, 0, 1);
  const auto bytes = [&](ops::KvType type) {
    return Transformer::kv_bytes_per_block(config, whole, 16, type);
  };
  EXPECT_EQ(bytes(ops::KvType::kBF16), bytes(ops::KvType::kF32) / 2);
  EXPECT_EQ(bytes(ops::KvType::kInt8), 2u * 22 * 4 * 16 * (64 + 4));  // with a scale each
  for (const char* name : {"gemma4-shared-f16", "deepseek_v3-bf16"}) {
    for (const ops::KvType type : {ops::KvType::kBF16, ops::KvType::kInt8}) {
      LoneModel lone(golden_dir() / name, ops::best_isa(), 1, with_kv(type));
      const size_t block = Transformer::kv_bytes_per_block(
          lone.config, shard_model(lone.config, 0, 1), kOptions.block_size, type);
      EXPECT_EQ(lone.model->memory().kv, static_cast<size_t>(kOptions.num_blocks) * block) << name;
    }
  }
}

TEST(Transformer, OfLatentAttentionOneLatentAPositionIsKeptOnEveryRank) {
  const ModelConfig config = load_model_config(golden_dir() / "deepseek_v3-bf16");
  const size_t of_position = static_cast<size_t>(config.latent.rope_dim + config.latent.kv_rank);
  for (const int num_ranks : {1, 4}) {
    const ModelShard shard = shard_model(config, num_ranks - 1, num_ranks);
    EXPECT_EQ(Transformer::kv_bytes_per_block(config, shard, 16), 2u * 16 * of_position * 4);
  }
  LoneModel lone(config, golden_dir() / "deepseek_v3-bf16", ops::best_isa());
  EXPECT_EQ(lone.model->memory().kv, kOptions.num_blocks * 2u * 16 * of_position * 4);
}

// Layers that read the pages of others take none; full layers have heads of their own.
TEST(Transformer, KvBytesPerBlockCountsEachLayerAsItIs) {
  ModelConfig config = synthetic_shape("tinyllama-1.1b");  // 4 KV heads of 64
  config.n_layers = 6;
  config.sliding_window = 12;
  config.full_layers = {false, false, true, false, false, true};
  config.full_head_dim = 128;
  config.full_kv_heads = 2;
  config.kv_shared_layers = 3;
  const size_t numbers = 2 * 4 * 64 + 2 * 128;  // of keys, of three layers
  const ModelShard whole = shard_model(config, 0, 1);
  EXPECT_EQ(Transformer::kv_bytes_per_block(config, whole, 16), 2 * 16 * numbers * sizeof(float));
  const ModelShard quarter = shard_model(config, 3, 4);
  const size_t own = 2 * 1 * 64 + 1 * 128;
  EXPECT_EQ(Transformer::kv_bytes_per_block(config, quarter, 16), 2 * 16 * own * sizeof(float));
}

TEST(TransformerDeath, ABatchThatCannotBeIsStopped) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  LoneModel model(golden_dir() / "llama-untied-bf16",
                  ops::best_isa(),
                  1,
                  {.block_size = 16, .num_blocks = 4, .max_rows = 8, .max_logit_rows = 8});
  const auto expect_stopped = [&](const auto& spoil) {
    Batch batch;
    const std::vector<int32_t> tokens = {1, 2, 3};
    std::vector<int32_t> blocks = {0};
    append_rows(batch, tokens, 0, blocks);
    batch.logit_rows = {2};
    model.model->forward(batch);
    spoil(batch, blocks);
    EXPECT_DEATH(model.model->forward(batch), "internal error");
  };
  expect_stopped([](Batch& b, auto&) { b.tokens[0] = 259; });
  expect_stopped([](Batch& b, auto&) { b.tokens[0] = -1; });
  expect_stopped([](Batch& b, auto&) { b.positions[2] = 16; });
  expect_stopped([](Batch& b, auto&) { b.positions[0] = -1; });
  expect_stopped([](Batch& b, auto&) { b.sequence_of_row[1] = 1; });
  expect_stopped([](Batch& b, auto&) { b.logit_rows = {3}; });
  expect_stopped([](Batch& b, auto&) { b.logit_rows = {1, 1}; });
  expect_stopped([](Batch&, auto& blocks) { blocks[0] = 4; });
  expect_stopped([](Batch& b, auto&) { b.positions.pop_back(); });
  expect_stopped([](Batch& b, auto& blocks) {
    b = {};
    append_rows(b, std::vector<int32_t>(9, 1), 0, blocks);
  });
}

ModelConfig small_shape() {
  ModelConfig config = synthetic_shape("tinyllama-1.1b@2");
  config.hidden_dim = 128;
  config.n_heads = 6;
  config.n_kv_heads = 2;
  config.head_dim = 16;
  config.rope.rotary_dim = 16;
  config.ffn_dim = 131;
  config.vocab_size = 517;
  return config;
}

TEST(Synthetic, WeightsDoNotDependOnTheSharding) {
  const ModelConfig config = small_shape();
  const auto text = some_text(24, config.vocab_size, 8);
  const auto vocab = static_cast<size_t>(config.vocab_size);
  std::vector<std::vector<float>> results;
  for (const int num_ranks : {1, 2, 4, 6}) {
    std::vector<float> all(vocab, std::nanf(""));
    run_in_process(num_ranks, [&](World& world) {
      const auto group = world.make_target_group(num_ranks);
      const ModelShard shard = shard_model(config, group->rank(), num_ranks);
      ops::Context ctx(1);
      auto weights = random_weights(config, shard, 7, ops::DType::kF32);
      Transformer model(config, std::move(weights), shard, kOptions, *group, ctx);
      const auto blocks = block_ids(0, 2);
      Batch batch;
      append_rows(batch, text, 0, blocks);
      batch.logit_rows = {23};
      const auto part = model.forward(batch);
      std::copy(part.begin(), part.end(), all.begin() + shard.vocab.begin);
    });
    results.push_back(all);
  }
  ASSERT_GT(spread(results[0]), 1.0);
  for (const auto& result : results) {
    for (size_t i = 0; i < vocab; ++i) {
      ASSERT_TRUE(std::abs(result[i] - results[0][i]) <= 2e-5 * spread(results[0])) << i;
    }
  }
}

// Bits that another program following the recipe made (tinyllama-1.1b, seed 42, epsilon 0.04).
TEST(Synthetic, ElementsFollowTheRecipe) {
  const ModelConfig config = synthetic_shape("tinyllama-1.1b");
  const auto source = make_synthetic_source(config, {});
  const auto first_four = [&](const std::string& name, int64_t n_columns, int64_t row) {
    std::vector<uint16_t> bits(4);
    source->read({name, n_columns, {row, row + 1}, {0, 4}},
                 reinterpret_cast<std::byte*>(bits.data()));
    return bits;
  };
  using Bits = std::vector<uint16_t>;
  EXPECT_EQ(first_four("model.embed_tokens.weight", 2048, 0),
            (Bits{0xbf3a, 0xbe10, 0x3eea, 0xbe94}));
  EXPECT_EQ(first_four("model.layers.0.self_attn.q_proj.weight", 2048, 0),
            (Bits{0xbd19, 0x3c33, 0x3d60, 0xbd03}));
  EXPECT_EQ(first_four("model.layers.5.self_attn.o_proj.weight", 2048, 0),
            (Bits{0xb9fa, 0xbab2, 0xbaab, 0xba07}));
  EXPECT_EQ(first_four("lm_head.weight", 2048, 259), (Bits{0x3e19, 0xbd6c, 0x3c59, 0xbd9c}));
  EXPECT_EQ(first_four("lm_head.weight", 2048, 258), (Bits{0, 0, 0, 0}));
  EXPECT_EQ(first_four("model.norm.weight", 2048, 0), (Bits{0x3f80, 0x3f80, 0x3f80, 0x3f80}));
}

TEST(Synthetic, ShapesAreThoseOfTheNamedModels) {
  const auto num_weights = [](const std::string& name) {
    const ModelConfig c = synthetic_shape(name);
    const int64_t layer = int64_t{c.hidden_dim} * c.head_dim * (2 * c.n_heads + 2 * c.n_kv_heads) +
                          int64_t{3} * c.hidden_dim * c.ffn_dim;
    return c.n_layers * layer + int64_t{c.vocab_size} * c.hidden_dim * (c.tied_head ? 1 : 2);
  };
  EXPECT_NEAR(static_cast<double>(num_weights("tinyllama-1.1b")), 1.1e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(num_weights("llama-3.2-1b")), 1.236e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(num_weights("llama-3.1-8b")), 8.03e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(num_weights("qwen3-4b")), 4.02e9, 0.02e9);
  EXPECT_EQ(synthetic_shape("qwen3-4b@5").n_layers, 5);
  for (const char* wrong : {"gpt",
                            "",
                            "tinyllama-1.1b@0",
                            "tinyllama-1.1b@23",
                            "tinyllama-1.1b@x",
                            "tinyllama-1.1b@",
                            "tinyllama-1.1b@2x"}) {
    EXPECT_THROW(synthetic_shape(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace outrider
