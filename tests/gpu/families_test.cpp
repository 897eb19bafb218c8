// Every family that GPUs compute, against transformers: the tiny models of tests/golden/models, as
// the CPU is held against them (tests/models/golden_test.cpp).
#include <numeric>

#include "models/gpu/layout.h"
#include "runtime/comm/world/world.h"
#include "tests/gpu/model_case.h"
#include "tests/models/golden_model.h"

namespace outrider::test {
namespace {

using Format = GpuWeightFormat;

// Where every layer is dense, nothing of a mixture is left.
Golden read_golden(const std::string& name) {
  Golden golden(name);
  bool has_experts = false;
  for (int32_t layer = 0; layer < golden.config.n_layers; ++layer) {
    has_experts |= golden.config.has_experts(layer);
  }
  if (!has_experts) golden.config.experts = {};
  return golden;
}

std::vector<Golden> models_on_gpus() {
  std::vector<Golden> models;
  for (const std::string& name : model_names(golden_dir())) {
    models.push_back(read_golden(name));
  }
  return models;
}

// The first model of each, where one shows what is to be seen, and those with what it has not.
std::vector<Golden> families_on_gpus() {
  std::vector<Golden> models;
  for (Golden& golden : models_on_gpus()) {
    const ModelConfig& config = golden.config;
    const bool is_known = !models.empty() && models.back().config.model_type == config.model_type;
    const bool has_more =
        config.per_layer_dim > 0 || config.latent.q_rank > 0 || config.experts.beside_mlp;
    if (!is_known || has_more) models.push_back(std::move(golden));
  }
  return models;
}

// A text's rows in steps of these sizes: a prompt, then rows of verifications and single ones.
using Steps = std::vector<int32_t>;
const Steps kText = {40, 21, 1, 5, 1, 1, 34};  // all that transformers computed

// [rows, whole vocabulary]; of a member its own columns, the rest zeros.
std::vector<float> run_text(Model& model, std::span<const int32_t> text, const Steps& steps) {
  const std::vector<int32_t> blocks = {5, 0, 9, 2, 3, 14, 1};
  const Range own = model.shard().vocab;
  text = text.first(std::accumulate(steps.begin(), steps.end(), size_t{0}));
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  const auto width = static_cast<size_t>(own.size());
  std::vector<float> all(text.size() * vocab);
  int32_t first = 0;
  for (const int32_t count : steps) {
    Batch batch;
    append_rows(
        batch, text.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), first, blocks);
    batch.logit_rows = block_ids(0, count);
    const std::span<const float> logits = model.forward(batch);
    for (size_t i = 0; i < logits.size(); ++i) {
      const size_t row = static_cast<size_t>(first) + i / width;
      all[row * vocab + static_cast<size_t>(own.begin) + i % width] = logits[i];
    }
    first += count;
  }
  return all;
}

std::vector<float> on_gpu(const Golden& golden, const ModelConfig& config, Format format) {
  const auto group = make_solo_group();
  CaseModel gpu(golden.dir, config, *group, Numerics::kFast, format);
  EXPECT_EQ(gpu.weight_bytes, gpu_weight_bytes(config, gpu.model->shard(), format)) << golden.dir;
  return run_text(*gpu.model, golden.text(), kText);
}

// From transformers', over the positions that are kept.
double error_of(const Golden& golden, const std::vector<float>& logits) {
  const auto vocab = static_cast<size_t>(golden.config.vocab_size);
  double error = 0.0;
  for (size_t i = 0; i < golden.positions.size(); ++i) {
    const auto position = static_cast<size_t>(golden.positions[i]);
    error = std::max(error,
                     relative_error(std::span(logits).subspan(position * vocab, vocab),
                                    std::span(golden.logits).subspan(i * vocab, vocab)));
  }
  return error;
}

TEST(GpuFamilies, LogitsAreThoseOfTransformers) {
  ASSERT_FALSE(models_on_gpus().empty());
  for (const Golden& golden : models_on_gpus()) {
    const double error = error_of(golden, on_gpu(golden, golden.config, Format::kF32));
    EXPECT_TRUE(error < 1e-4) << golden.dir << " in f32: " << error;
  }
  for (const Golden& golden : families_on_gpus()) {
    const double error = error_of(golden, on_gpu(golden, golden.config, Format::kAuto));
    EXPECT_TRUE(error < 5e-2) << golden.dir << ": " << error;
  }
}

TEST(GpuFamilies, RowsDoNotDependOnWhatSharesTheirStep) {
  const auto group = make_solo_group();
  for (const Golden& golden : families_on_gpus()) {
    const auto run = [&](const Steps& steps) {
      CaseModel gpu(golden.dir, golden.config, *group, Numerics::kFast, Format::kAuto);
      return run_text(*gpu.model, golden.text(), steps);
    };
    EXPECT_TRUE(same_logit_bits(run({30}), run({17, 1, 5, 1, 1, 5}))) << golden.dir;
  }
}

std::vector<float> on_ranks(const Golden& golden, int num_ranks) {
  std::vector<float> all;
  run_in_process(num_ranks, [&](World& world) {
    const auto group = world.make_target_group(num_ranks);
    CaseModel gpu(golden.dir, golden.config, *group, Numerics::kStrict, Format::kF32);
    std::vector<float> own = run_text(*gpu.model, golden.text(), {9, 1});
    group->all_reduce_sum(std::span(own), Fold::kTree);  // each has one member that knows it
    if (group->rank() == 0) all = std::move(own);
  });
  return all;
}

TEST(GpuFamilies, StrictBitsAreThoseOfAnyNumberOfRanks) {
  for (const Golden& golden : families_on_gpus()) {
    const std::vector<float> expected = on_ranks(golden, 1);
    expect_real_logits(expected);
    for (const int num_ranks : {2, 4}) {
      EXPECT_TRUE(same_logit_bits(on_ranks(golden, num_ranks), expected))
          << golden.dir << " on " << num_ranks << " ranks";
    }
  }
}

// The comparison above must notice when a switch is left out.
TEST(GpuFamilies, AMissingSwitchIsSeen) {
  const auto expect_seen = [](const char* name, const auto& spoil) {
    const Golden golden = read_golden(name);
    ModelConfig config = golden.config;
    spoil(config);
    EXPECT_GT(error_of(golden, on_gpu(golden, config, Format::kF32)), 1e-3) << name;
  };
  expect_seen("granite-bf16", [](ModelConfig& c) { c.embedding_scale = 1.0f; });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.residual_scale = 1.0f; });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.attention_scale = 0.0f; });
  expect_seen("granite-bf16", [](ModelConfig& c) { c.logit_scale = 1.0f; });
  expect_seen("ministral3-f16", [](ModelConfig& c) { c.query_growth = 0.0f; });
  expect_seen("smollm3-bf16", [](ModelConfig& c) { c.no_rope_layers.clear(); });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.attention_softcap = 0.0f; });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.logit_softcap = 0.0f; });
  expect_seen("gemma2-bf16", [](ModelConfig& c) { c.activation = ops::ActivationKind::kRelu; });
  expect_seen("gemma3-f32", [](ModelConfig& c) { c.local_rope.reset(); });
  expect_seen("gemma4-bf16", [](ModelConfig& c) { c.v_norm = false; });
  expect_seen("gemma4-bf16", [](ModelConfig& c) { c.layer_scalar = false; });
  expect_seen("gemma4-shared-f16", [](ModelConfig& c) { c.per_layer_scale = 1.0f; });
  expect_seen("deepseek_v3-fp8", [](ModelConfig& c) { c.rope.interleaved = false; });
  expect_seen("deepseek_v3-fp8", [](ModelConfig& c) { c.attention_scale = 0.0f; });
  expect_seen("glm4-bf16", [](ModelConfig& c) { c.rope.interleaved = false; });
  expect_seen("cohere2-bf16", [](ModelConfig& c) { c.norm = NormKind::kRms; });
  expect_seen("gpt_neox-bf16", [](ModelConfig& c) { c.parallel_mlp = false; });
  expect_seen("falcon-alibi-bf16", [](ModelConfig& c) { c.alibi = false; });
  expect_seen("mixtral-bf16", [](ModelConfig& c) { c.experts.normalised = false; });
  expect_seen("qwen2_moe-bf16", [](ModelConfig& c) { c.experts.normalised = true; });
  expect_seen("gpt_oss-bf16", [](ModelConfig& c) { c.experts.swiglu.alpha = 1.0f; });
  expect_seen("glm4_moe-bf16", [](ModelConfig& c) { c.experts.sigmoid = false; });
  expect_seen("glm4_moe-bf16", [](ModelConfig& c) { c.experts.chosen_groups = 4; });
  expect_seen("minimax_m2-bf16", [](ModelConfig& c) { c.experts.sigmoid = false; });
  expect_seen("gemma4-experts-bf16", [](ModelConfig& c) { c.experts.sigmoid = true; });
}

}  // namespace
}  // namespace outrider::test
