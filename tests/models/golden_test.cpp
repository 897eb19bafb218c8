// Every family against transformers: logits and greedy tokens of the tiny models of
// tests/golden/models (made by tools/make_model_golden.py), for each instruction set and for 1, 2
// and 4 ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/comm/world/world.h"
#include "tests/base/error_sentence.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

struct Golden {
  std::filesystem::path dir;
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<int32_t> positions;
  std::vector<float> logits;  // [positions, vocab]

  explicit Golden(const std::string& name) : dir(golden_dir() / name) {
    const auto json = nlohmann::json::parse(read_bytes(dir / "golden.json"));
    prompt = json.at("prompt").get<std::vector<int32_t>>();
    greedy = json.at("greedy").get<std::vector<int32_t>>();
    positions = json.at("logit_positions").get<std::vector<int32_t>>();
    const std::string raw = read_bytes(dir / "logits.f32");
    logits.resize(raw.size() / sizeof(float));
    std::memcpy(logits.data(), raw.data(), raw.size());
  }

  // Prompt and continuation without the last token: the positions the reference computed.
  std::vector<int32_t> text() const {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), greedy.begin(), greedy.end() - 1);
    return all;
  }
};

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_dir())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Largest difference relative to the largest reference logit; infinite when anything is not finite.
double relative_error(std::span<const float> got, std::span<const float> expected) {
  double error = 0.0;
  double scale = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!std::isfinite(difference)) return HUGE_VAL;
    error = std::max(error, difference);
    scale = std::max(scale, std::abs(static_cast<double>(expected[i])));
  }
  return error / scale;
}

class GoldenModel : public testing::TestWithParam<std::string> {};

TEST(GoldenModels, AllFamiliesAreThere) {
  const auto names = golden_names();
  EXPECT_GE(names.size(), 13u);
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) {
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(family);
    })) << family;
  }
}

TEST_P(GoldenModel, LogitsAreThoseOfTransformersOnEveryInstructionSet) {
  const Golden golden(GetParam());
  for (const ops::Isa isa : available_isas()) {
    LoneModel lone(golden.dir, isa);
    const auto vocab = static_cast<size_t>(lone.config.vocab_size);
    ASSERT_EQ(golden.logits.size(), golden.positions.size() * vocab);
    const auto logits = lone.run(golden.text(), 0, block_ids(0, 8));
    for (size_t i = 0; i < golden.positions.size(); ++i) {
      const auto position = static_cast<size_t>(golden.positions[i]);
      const auto expected = std::span(golden.logits).subspan(i * vocab, vocab);
      const auto got = std::span(logits).subspan(position * vocab, vocab);
      const double error = relative_error(got, expected);
      EXPECT_TRUE(error < 1e-4) << ops::isa_name(isa) << " position " << position << ": " << error;
    }
  }
}

TEST_P(GoldenModel, GreedyTokensAreThoseOfTransformers) {
  const Golden golden(GetParam());
  for (const ops::Isa isa : available_isas()) {
    LoneModel lone(golden.dir, isa, 2);
    const auto count = static_cast<int>(golden.greedy.size());
    EXPECT_EQ(lone.greedy(golden.prompt, count, block_ids(5, 8)), golden.greedy)
        << ops::isa_name(isa);
  }
}

// Largest error over the kept positions when the model runs with this config.
double error_with(const Golden& golden, const ModelConfig& config) {
  LoneModel lone(config, golden.dir, ops::best_isa());
  const auto vocab = static_cast<size_t>(config.vocab_size);
  const auto logits = lone.run(golden.text(), 0, block_ids(0, 8));
  double error = 0.0;
  for (size_t i = 0; i < golden.positions.size(); ++i) {
    const auto position = static_cast<size_t>(golden.positions[i]);
    error = std::max(error,
                     relative_error(std::span(logits).subspan(position * vocab, vocab),
                                    std::span(golden.logits).subspan(i * vocab, vocab)));
  }
  return error;
}

// The comparison above must notice when a feature of the family is left out.
TEST(GoldenModels, AMissingFeatureIsSeen) {
  const auto expect_seen = [](const char* name, const auto& spoil) {
    const Golden golden(name);
    ModelConfig config = load_model_config(golden.dir);
    ASSERT_TRUE(error_with(golden, config) < 1e-4) << name;
    spoil(config);
    EXPECT_GT(error_with(golden, config), 1e-3) << name;
  };
  expect_seen("mistral-window-sharded", [](ModelConfig& c) { c.sliding_window = 0; });
  expect_seen("mistral-window-sharded", [](ModelConfig& c) { c.sliding_window += 1; });
  expect_seen("qwen2-window-f16", [](ModelConfig& c) { c.first_windowed_layer = 0; });
  expect_seen("llama-yarn-bf16", [](ModelConfig& c) { c.rope.attention_factor = 1.0; });
  expect_seen("llama-untied-bf16", [](ModelConfig& c) { c.norm_eps = 0.05f; });
  for (const char* name : {"llama-yarn-bf16", "llama3-rope-bf16", "llama-linear-bf16"}) {
    expect_seen(name, [](ModelConfig& c) { c.rope.scaling = RopeScaling::kNone; });
  }
}

// What has weights of its own is missed by the loader already.
TEST(GoldenModels, AFeatureThatIsLeftOutThoughItHasWeightsIsRefused) {
  const auto expect_refused = [](const char* name, const char* part, const auto& spoil) {
    const Golden golden(name);
    ModelConfig config = load_model_config(golden.dir);
    spoil(config);
    EXPECT_TRUE(fails_with([&] { error_with(golden, config); }, part)) << name;
  };
  const char* bias = "is not zero, but by config.json there is no such bias";
  expect_refused("qwen2-tied-bf16", bias, [](ModelConfig& c) { c.attention_bias = false; });
  expect_refused("llama-bias-f16", bias, [](ModelConfig& c) { c.mlp_bias = false; });
  expect_refused("llama-bias-f16", bias, [](ModelConfig& c) { c.attention_out_bias = false; });
  expect_refused("qwen3-bf16", "no such tensor", [](ModelConfig& c) { c.qk_norm = false; });
}

// One rank's part of the logits of every position, put into its columns of `all`.
void run_rank(const Golden& golden, TargetGroup& group, std::vector<float>& all) {
  const ModelConfig config = load_model_config(golden.dir);
  const ModelShard shard = shard_model(config, group.rank(), group.size());
  ops::Context ctx(1);
  Transformer model(config,
                    load_weights(golden.dir, config, shard),
                    shard,
                    {.block_size = 16, .num_blocks = 8, .max_rows = 128, .max_logit_rows = 128},
                    group,
                    ctx);
  const auto blocks = block_ids(0, 8);
  const auto text = golden.text();
  Batch batch;
  append_rows(batch, text, 0, blocks);
  batch.logit_rows = block_ids(0, static_cast<int32_t>(text.size()));
  const auto part = model.forward(batch);
  const auto width = static_cast<size_t>(shard.vocab.size());
  for (size_t row = 0; row < text.size(); ++row) {
    std::copy_n(
        part.begin() + static_cast<std::ptrdiff_t>(row * width),
        width,
        all.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(config.vocab_size) +
                                                  static_cast<size_t>(shard.vocab.begin)));
  }
}

TEST_P(GoldenModel, RanksAgreeWithOneRank) {
  const Golden golden(GetParam());
  const size_t rows = golden.text().size();
  LoneModel lone(golden.dir, ops::best_isa());
  const auto vocab = static_cast<size_t>(lone.config.vocab_size);
  const auto expected = lone.run(golden.text(), 0, block_ids(0, 8));
  for (const int num_ranks : {2, 3, 4}) {
    std::vector<float> all(rows * vocab, std::nanf(""));
    run_in_process(num_ranks, [&](World& world) {
      const auto group = world.make_target_group(num_ranks);
      run_rank(golden, *group, all);
    });
    const double error = relative_error(all, expected);
    EXPECT_TRUE(error < 1e-5) << num_ranks << " ranks: " << error;
    for (size_t step = 0; step < golden.greedy.size(); ++step) {
      const size_t row = golden.prompt.size() - 1 + step;
      const auto logits = std::span<const float>(all).subspan(row * vocab, vocab);
      EXPECT_EQ(lowest_argmax(logits), golden.greedy[step]) << num_ranks << " ranks, step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         GoldenModel,
                         testing::ValuesIn(golden_names()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
