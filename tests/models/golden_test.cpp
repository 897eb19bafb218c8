// Every family against transformers: logits and greedy tokens of the tiny models of
// tests/golden/models (made by tools/make_model_golden.py), for each instruction set and for 1, 2
// and 4 ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "models/checkpoint/safetensors_writer.h"
#include "models/gpu/layout.h"
#include "runtime/comm/world/world.h"
#include "tests/base/error_sentence.h"
#include "tests/models/golden_model.h"

namespace outrider {
namespace {

using namespace test;

// The page for people says of each family what is computed and how it is tested.
TEST(GoldenModels, ThePageOfModelsIsTrue) {
  const std::string page =
      read_bytes(std::filesystem::path(OUTRIDER_SOURCE_DIR) / "docs" / "reference" / "models.md");
  for (const Family* family : families()) {
    int num_models = 0;
    for (const std::string& name : model_names(golden_dir())) {
      const ModelConfig config = load_model_config(golden_dir() / name);
      if (config.model_type != family->model_type) continue;
      ++num_models;
    }
    const std::string row =
        fmt::format("| `{}` | {} | {} |", family->model_type, family->switches, num_models);
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

class GoldenModel : public testing::TestWithParam<std::string> {};

TEST(GoldenModels, AllFamiliesAreThere) {
  const auto names = model_names(golden_dir());
  for (const Family* family : families()) {
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return load_model_config(golden_dir() / name).model_type == family->model_type;
    })) << family->model_type;
  }
}

TEST_P(GoldenModel, LogitsAreThoseOfTransformersOnEveryInstructionSet) {
  const Golden golden(GetParam());
  for (const ops::Isa isa : available_isas()) {
    LoneModel lone(golden.config, golden.dir, isa);
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
    LoneModel lone(golden.config, golden.dir, isa, 2);
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

// The model with more tensors, in float32.
void copy_with(const std::filesystem::path& from,
               const std::map<std::string, std::vector<float>>& extra,
               const std::filesystem::path& to) {
  std::filesystem::copy(from / "config.json", to / "config.json");
  const SafetensorsFile file(from / "model.safetensors");
  std::vector<PlannedTensor> plan;
  for (const auto& [name, values] : extra) plan.push_back({name, "F32", {std::ssize(values)}});
  for (const auto& [name, info] : file.tensors())
    plan.push_back({name, info.type_name, info.shape});
  CheckpointWriter writer(to, plan);
  for (const auto& [name, values] : extra) writer.append(name, std::as_bytes(std::span(values)));
  for (const auto& [name, info] : file.tensors()) {
    std::vector<std::byte> bytes(info.end - info.begin);
    file.read(info, 0, bytes.data(), bytes.size());
    writer.append(name, bytes);
  }
  writer.finish();
}

// The comparison above must notice when a feature of the family is left out.
TEST(GoldenModels, AMissingFeatureIsSeen) {
  const auto expect_seen = [](const char* name, const auto& spoil) {
    const Golden golden(name);
    ModelConfig config = golden.config;
    ASSERT_TRUE(error_with(golden, config) < 1e-4) << name;
    spoil(config);
    EXPECT_GT(error_with(golden, config), 1e-3) << name;
  };
  expect_seen("mistral-window-sharded", [](ModelConfig& c) { c.sliding_window = 0; });
  expect_seen("mistral-window-sharded", [](ModelConfig& c) { c.sliding_window += 1; });
  expect_seen("qwen2-window-f16", [](ModelConfig& c) { c.full_layers.clear(); });
  expect_seen("llama-yarn-bf16", [](ModelConfig& c) { c.rope.attention_factor = 1.0; });
  expect_seen("llama-untied-bf16", [](ModelConfig& c) { c.norm_eps = 0.05f; });
  for (const char* name : {"llama-yarn-bf16", "llama3-rope-bf16", "llama-linear-bf16"}) {
    expect_seen(name, [](ModelConfig& c) { c.rope.scaling = RopeScaling::kNone; });
  }
  expect_seen("ministral3-f16", [](ModelConfig& c) { c.query_growth = 0.0f; });
  expect_seen("smollm3-bf16", [](ModelConfig& c) { c.no_rope_layers.clear(); });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.embedding_scale = 1.0f; });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.residual_scale = 1.0f; });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.attention_scale = 0.0f; });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.logit_scale = 1.0f; });
  expect_seen("phi3-long-f16", [](ModelConfig& c) { c.served_positions = 32; });
  expect_seen("phi3-short-bf16", [](ModelConfig& c) { c.served_positions = 129; });
  expect_seen("glm4-bf16", [](ModelConfig& c) { c.rope.interleaved = false; });
  expect_seen("glm4-bf16", [](ModelConfig& c) { c.rope.rotary_dim = 8; });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.attention_softcap = 0.0f; });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.logit_softcap = 0.0f; });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.full_layers.clear(); });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.norm_plus_one = false; });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.activation = ops::ActivationKind::kSilu; });
  expect_seen("gemma3-f32", [](ModelConfig& c) { c.local_rope.reset(); });
  expect_seen("gemma4-bf16", [](ModelConfig& c) { c.rope.turning_share = 0.5; });
  expect_seen("gemma4-bf16", [](ModelConfig& c) { c.v_norm = false; });
  expect_seen("gemma4-bf16", [](ModelConfig& c) { c.attention_scale = 0.0f; });
  expect_seen("gemma4-bf16", [](ModelConfig& c) { c.layer_scalar = false; });
  expect_seen("gemma4-experts-bf16", [](ModelConfig& c) { c.experts.per_row = 2; });
  expect_seen("gemma4-shared-f16", [](ModelConfig& c) { c.per_layer_scale = 1.0f; });
  expect_seen("cohere2-bf16", [](ModelConfig& c) { c.no_rope_layers.clear(); });
  expect_seen("cohere2-bf16", [](ModelConfig& c) { c.norm = NormKind::kRms; });
  expect_seen("gpt_neox-bf16", [](ModelConfig& c) { c.parallel_mlp = false; });
  expect_seen("gpt2-bf16", [](ModelConfig& c) {
    c.position_offset = 1;
    c.max_positions -= 1;
  });
  expect_seen("falcon-alibi-bf16", [](ModelConfig& c) { c.alibi = false; });
  expect_seen("mixtral-bf16", [](ModelConfig& c) { c.experts.normalised = false; });
  expect_seen("mixtral-bf16", [](ModelConfig& c) { c.sliding_window = 0; });
  expect_seen("qwen2_moe-bf16", [](ModelConfig& c) { c.experts.normalised = true; });
  expect_seen("qwen2_moe-bf16", [](ModelConfig& c) { c.experts.shared_gate = false; });
  expect_seen("qwen3_moe-bf16", [](ModelConfig& c) { c.experts.per_row = 2; });
  expect_seen("glm4_moe-bf16", [](ModelConfig& c) { c.experts.sigmoid = false; });
  expect_seen("glm4_moe-bf16", [](ModelConfig& c) { c.experts.chosen_groups = 4; });
  expect_seen("glm4_moe-bf16", [](ModelConfig& c) { c.experts.scale = 1.0f; });
  expect_seen("glm4_moe-f16", [](ModelConfig& c) { c.experts.normalised = true; });
  expect_seen("gpt_oss-bf16", [](ModelConfig& c) { c.full_layers.flip(); });
  expect_seen("gpt_oss-bf16", [](ModelConfig& c) { c.rope.yarn_truncate = true; });
  expect_seen("gpt_oss-bf16", [](ModelConfig& c) { c.experts.swiglu.alpha = 1.0f; });
  expect_seen("gpt_oss-bf16", [](ModelConfig& c) { c.experts.swiglu.limit = 50.0f; });
  expect_seen("gpt_oss-bf16", [](ModelConfig& c) { c.experts.normalised = false; });
  for (const char* name : {"deepseek_v3-bf16", "kimi_k2-bf16"}) {
    expect_seen(name, [](ModelConfig& c) {
      c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.latent.query_dim()));
    });
    expect_seen(name, [](ModelConfig& c) { c.rope.interleaved = false; });
    expect_seen(name, [](ModelConfig& c) { c.experts.scale = 1.0f; });
  }
  expect_seen("deepseek_v3-bf16", [](ModelConfig& c) { c.experts.chosen_groups = 4; });
  expect_seen("deepseek_v3-bf16", [](ModelConfig& c) { c.rope.attention_factor = 1.0; });
  expect_seen("deepseek_v3-f16", [](ModelConfig& c) { c.rope.interleaved = true; });
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
  expect_refused(
      "gemma4-shared-f16", "no such tensor", [](ModelConfig& c) { c.per_layer_dim = 0; });
  expect_refused("gemma4-bf16", "no such tensor", [](ModelConfig& c) { c.full_k_is_v = true; });
  expect_refused("gemma4-shared-f16", "is missing", [](ModelConfig& c) { c.kv_shared_layers = 0; });
  expect_refused("gpt_neox-bf16", bias, [](ModelConfig& c) { c.norm_bias = false; });
  expect_refused("gpt_oss-bf16", bias, [](ModelConfig& c) { c.experts.biases = false; });
  expect_refused("gpt_oss-bf16", "no such tensor", [](ModelConfig& c) { c.names.sinks = ""; });
  expect_refused("kimi_k2-bf16", bias, [](ModelConfig& c) { c.attention_bias = false; });
  expect_refused("deepseek_v3-fp8", "of type F8_E4M3", [](ModelConfig& c) { c.quantization = {}; });
  expect_refused("deepseek_v3-fp8", "_scale_inv\" has shape", [](ModelConfig& c) {
    c.quantization.block_rows = 8;
  });
}

// Layers that predict more tokens (MTP) lie behind the last one, with tensors of their own names.
TEST(GoldenModels, LayersThatPredictMoreTokensAreLeftOut) {
  for (const std::string name : {"deepseek_v3-bf16", "glm4_moe-bf16", "minimax_m2-bf16"}) {
    const Golden golden(name);
    std::map<std::string, std::vector<float>> extra;
    for (const int32_t layer : {golden.config.n_layers, golden.config.n_layers + 1}) {
      for (const char* own : {"eh_proj.weight", "enorm.weight", "shared_head.head.weight"}) {
        extra[fmt::format("model.layers.{}.{}", layer, own)] = {std::nanf(""), 1.0f};
      }
      // Of the names and shapes of other layers.
      extra[fmt::format("model.layers.{}.input_layernorm.weight", layer)].resize(
          static_cast<size_t>(golden.config.hidden_dim), std::nanf(""));
    }
    const TempDir with;
    copy_with(golden.dir, extra, with.path());
    const auto logits_of = [&](const std::filesystem::path& dir) {
      testing::internal::CaptureStderr();
      LoneModel lone(golden.config, dir, ops::best_isa());
      return std::pair(lone.run(golden.text(), 0, block_ids(0, 8)),
                       testing::internal::GetCapturedStderr());
    };
    const auto [expected, no_line] = logits_of(golden.dir);
    const auto [got, line] = logits_of(with.path());
    EXPECT_EQ(got, expected) << name;
    EXPECT_EQ(no_line, "");
    const std::string said = fmt::format("8 tensors are not loaded: layers from {} on, and heads",
                                         golden.config.n_layers);
    EXPECT_NE(line.find(said), std::string::npos) << line;
  }
}

// One rank's part of the logits of every position, put into its columns of `all`.
void run_rank(const Golden& golden,
              TargetGroup& group,
              std::vector<float>& all,
              Numerics numerics = Numerics::kFast) {
  const ModelConfig& config = golden.config;
  const ModelShard shard = shard_model(config, group.rank(), group.size(), numerics);
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
  LoneModel lone(golden.config, golden.dir, ops::best_isa());
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

TEST_P(GoldenModel, StrictBitsAreTheSameOnAnyNumberOfRanks) {
  const Golden golden(GetParam());
  const size_t count = golden.text().size() * static_cast<size_t>(golden.config.vocab_size);
  std::vector<std::vector<float>> of_ranks;
  for (const int num_ranks : {1, 2, 4}) {
    std::vector<float> all(count, std::nanf(""));
    run_in_process(num_ranks, [&](World& world) {
      const auto group = world.make_target_group(num_ranks);
      run_rank(golden, *group, all, Numerics::kStrict);
    });
    of_ranks.push_back(std::move(all));
    EXPECT_EQ(std::memcmp(of_ranks[0].data(), of_ranks.back().data(), count * sizeof(float)), 0)
        << num_ranks << " ranks";
  }
}

// What speculation rests on: a row has the same bits alone, among others of its sequence as in a
// verification, and in a prompt's chunk beside another sequence.
TEST_P(GoldenModel, BitsOfARowDoNotDependOnItsCompany) {
  const Golden golden(GetParam());
  const auto text = golden.text();
  LoneModel lone(golden.config, golden.dir, ops::best_isa(), 2);
  const auto expected = lone.run(text, 0, block_ids(0, 8));
  const auto vocab = static_cast<size_t>(golden.config.vocab_size);
  for (const size_t piece : {1, 5}) {
    for (size_t first = 0; first < text.size(); first += piece) {
      const auto rows = std::span(text).subspan(first, std::min(piece, text.size() - first));
      const auto own = block_ids(8, 8);
      const auto other = block_ids(16, 8);
      Batch batch;
      append_rows(batch, rows, static_cast<int32_t>(first), own);
      append_rows(batch, std::span(text).first(1 + first % 7), 0, other);
      batch.logit_rows = block_ids(0, static_cast<int32_t>(rows.size()));
      const auto got = lone.model->forward(batch);
      ASSERT_EQ(std::memcmp(got.data(), expected.data() + first * vocab, got.size_bytes()), 0)
          << "position " << first << " in pieces of " << piece;
    }
  }
}

TEST_P(GoldenModel, WeightsOf8BitsStayClose) {
  const Golden golden(GetParam());
  ModelConfig config = golden.config;
  config.load_format = {.bits = 8, .group_size = 32};
  const double error = error_with(golden, config);
  EXPECT_GT(error, 1e-5);
  // One model is more sensitive than others, and not by its choice of experts: rounding v of its
  // first layer alone moves the logits of transformers by 0.11.
  EXPECT_LT(error, GetParam() == "qwen2_moe-f16" ? 0.3 : 0.15);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         GoldenModel,
                         testing::ValuesIn(model_names(golden_dir())),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
