// Whole jobs with their models on a GPU: the embedded pair writes what it writes on the
// CPU, alone and with drafts, and bad options are one sentence.
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/ranks/loading/gpu_memory.h"
#include "runtime/ranks/loading/model_names.h"
#include "runtime/ranks/target/device_row_scanner.h"
#include "runtime/ranks/target/logit_scanner.h"
#include "tests/base/error_sentence.h"
#include "tests/gpu/job_case.h"

namespace outrider::test {
namespace {

using GpuEngine = GpuJobs;

std::vector<Ask> asks() {
  SamplingParams edited = seeded(0.9f, 11, 8);
  edited.top_p = 0.95f;
  edited.repetition_penalty = 1.3f;
  edited.num_logprobs = 2;
  edited.prompt_logprobs = true;
  return {{"The king said", greedy(8)},
          {"Once upon a time there was", seeded(0.8f, 7, 8)},
          {"In the forest", edited}};
}

std::vector<std::vector<int32_t>> texts_of(const RunConfig& config) {
  std::vector<std::vector<int32_t>> texts;
  for (const Outcome& outcome : run_asks(config, asks())) {
    EXPECT_EQ(outcome.error, "");
    texts.push_back(outcome.tokens);
  }
  return texts;
}

ModelOptions options_of(int32_t max_rows) {
  return {.block_size = 16, .num_blocks = 0, .max_rows = max_rows, .max_logit_rows = max_rows};
}

TEST(GpuMemory, IsSharedByAllOnTheGpu) {
  const ModelConfig config = model_config_of("embedded", Role::kTarget);
  const MemoryRequirement target = {.config = config,
                                    .shard = shard_model(config, 0, 1),
                                    .options = options_of(64),
                                    .gpu = {.max_positions = 112}};
  MemoryRequirement draft = target;
  draft.config = model_config_of("embedded", Role::kDraft);
  draft.shard = shard_model(draft.config, 0, 1);
  constexpr size_t kTotal = size_t{1} << 30;
  const auto blocks = [&](std::vector<MemoryRequirement> demands, double utilization) {
    return shared_num_blocks(demands, utilization, kTotal, 7);
  };
  const int32_t alone = blocks({target}, 0.9);
  EXPECT_GT(alone, blocks({target}, 0.8));
  EXPECT_GT(alone, blocks({target, draft}, 0.9));
  // What is counted is what is taken: one more block would be too much.
  const size_t block = gpu_kv_bytes_per_block(config, target.shard, 16, gpu::Type::kBF16);
  const size_t rest =
      gpu_weight_bytes(config, target.shard, GpuWeightFormat::kAuto) +
      gpu_buffer_bytes(config, target.shard, target.options, target.gpu, gpu::Type::kBF16);
  const auto budget = static_cast<size_t>(0.9 * static_cast<double>(kTotal));
  EXPECT_LE(rest + static_cast<size_t>(alone) * block, budget);
  EXPECT_GT(rest + static_cast<size_t>(alone + 1) * block, budget);
  EXPECT_TRUE(fails_with([&] { blocks({target}, 0.005); }, "one sequence of max_model_len takes"));
}

TEST_F(GpuEngine, WhatCannotBeIsOneSentence) {
  const auto load = [](const RunConfig& config) {
    load_target(config, {1, false}, 0, 1, make_solo_group());
  };
  RunConfig config = small_config(1, 0, "cuda");
  config.cuda_device = 200;
  EXPECT_TRUE(fails_with([&] { load(config); }, "cuda_device 200 does not exist"));
  config = small_config(1, 0, "cuda");
  config.quantization = "int8";
  EXPECT_TRUE(fails_with([&] { load(config); }, "int8 is for device cpu"));
  config = small_config(1, 0, "cuda");
  config.kv_cache_dtype = "int8";
  EXPECT_TRUE(fails_with([&] { load(config); },
                         "kv_cache_dtype int8 is for device cpu: on GPUs keys and values are of "
                         "the activations' type, which is float32 here"));
  config.kv_cache_dtype = "float32";  // what auto is with these activations
  load(config);
  config = small_config(2, 0, "cuda");
  config.quantization = "fp8";
  config.numerics = "strict";
  EXPECT_TRUE(fails_with(
      [&] {
        load_target(config, {2, false}, 0, 1, make_solo_group());
      },
      "fp8 does not go with numerics strict"));
  config = small_config(1, 0, "cuda");
  config.kv_cache_memory_bytes = 1 << 16;
  EXPECT_TRUE(fails_with([&] { load(config); }, "of max_model_len 96 with a draft"));
  config = small_config(1, 0, "cuda");
  const auto total = static_cast<double>(gpu::test_backend().open(0)->info().total_bytes);
  config.gpu_memory_utilization = 1e6 / total;
  EXPECT_TRUE(fails_with([&] { load(config); }, "GB for KV, where one sequence"));
}

TEST_F(GpuEngine, LogitsStayThereUnlessTheHostReadsThem) {
  const auto asks_gpu = [](const std::string& device, bool read_on_host) {
    const LoadedModel loaded =
        load_target(small_config(1, 0, device), {1, false}, 0, 1, make_solo_group());
    const auto scanner = make_logit_scanner(*loaded.model, read_on_host);
    return dynamic_cast<const DeviceRowScanner*>(scanner.get()) != nullptr;
  };
  EXPECT_TRUE(asks_gpu("cuda", false));
  EXPECT_FALSE(asks_gpu("cuda", true));
  EXPECT_FALSE(asks_gpu("cpu", false));
}

// The other ranks of a shard that is measured alone.
class SilentGroup final : public TargetGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_reduce_sum(std::span<float>, Fold) override {}
  void all_reduce_sum(std::span<uint64_t>) override {}
  void all_reduce_max(std::span<uint64_t>) override {}
  void all_gather(std::span<const std::byte>, std::span<std::byte>) override {}
};

TEST_F(GpuEngine, AShardAloneIsRecordedAsThoseOfAJob) {
  LoadedModel loaded =
      load_target(small_config(2, 0, "cuda"), {2, false}, 0, 1, std::make_unique<SilentGroup>());
  begin_alone(loaded);
  EXPECT_EQ(loaded.device_group->size(), 2);
  const auto& model = dynamic_cast<const GpuTransformer&>(*loaded.model);
  const size_t num_graphs = model.num_graphs();
  EXPECT_GT(num_graphs, 3u);
  const std::vector<int32_t> blocks = {0};
  Batch batch;
  batch.block_tables.emplace_back(blocks);
  batch.tokens = {1};
  batch.positions = {0};
  batch.sequence_of_row = {0};
  batch.logit_rows = {0};
  const std::span<const float> logits = loaded.model->forward(batch);
  EXPECT_EQ(logits.size(), static_cast<size_t>(loaded.model->shard().vocab.size()));
  EXPECT_EQ(model.num_graphs(), num_graphs);
}

TEST_F(GpuEngine, WritesTheTextOfTheCpu) {
  const auto expected = texts_of(small_config(1, 0, "cpu"));
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(expected[0].size(), 8u);
  EXPECT_EQ(texts_of(small_config(1, 0, "cuda")), expected);
  EXPECT_EQ(texts_of(small_config(1, 3, "cuda")), expected);
  EXPECT_EQ(texts_of(small_config(2, 3, "cuda")), expected);
  RunConfig apart = small_config(1, 3, "cuda");
  apart.speculative.device = "cpu";
  EXPECT_EQ(texts_of(apart), expected);
}

TEST_F(GpuEngine, NothingReadsWhatIsNotThereYet) {
  const auto expected = texts_of(small_config(1, 0, "cpu"));
  const gpu::LateWork late;
  EXPECT_EQ(texts_of(small_config(1, 3, "cuda")), expected);
}

// Draft and target take turns: what the target waits for is made in chained steps.
TEST_F(GpuEngine, ChainedDraftStepsWriteTheSameText) {
  const auto expected = texts_of(small_config(1, 0, "cpu"));
  RunConfig in_turns = small_config(1, 5, "cuda");
  in_turns.speculative.async_drafting = "off";
  EXPECT_EQ(texts_of(in_turns), expected);
}

}  // namespace
}  // namespace outrider::test
