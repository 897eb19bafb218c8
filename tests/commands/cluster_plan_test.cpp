// The plan's arithmetic against figures worked out by hand, and how it must change with its inputs.
#include "runtime/commands/plan/cluster_plan.h"

#include <gtest/gtest.h>

#include "models/synthetic/synthetic.h"
#include "runtime/base/error.h"
#include "runtime/commands/plan/emulated_shard.h"

namespace outrider {
namespace {

const ModelConfig& llama_70b() {
  static const ModelConfig config = synthetic_shape("llama-3.1-70b");
  return config;
}
const ModelConfig& llama_8b() {
  static const ModelConfig config = synthetic_shape("llama-3.1-8b");
  return config;
}

ClusterShape over(int32_t ranks, int32_t nodes = 1) {
  return {.gpus_per_node = ranks / nodes, .num_nodes = nodes, .num_ranks = ranks, .context_len = 0};
}

TEST(ClusterPlan, OneGpuReadsItsMatrices) {
  const ModelPlan plan = plan_model(llama_8b(), over(1), {});
  // 32 layers of 218.1 M and a head of 525.3 M elements, 2 bytes each.
  const double layer = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336;
  const double matrices = 2 * (32 * layer + 128256.0 * 4096);
  EXPECT_DOUBLE_EQ(plan.memory.matrices_bytes, matrices);
  EXPECT_NEAR(matrices, 15.01e9, 0.01e9);
  EXPECT_DOUBLE_EQ(plan.memory.kv_bytes_per_token, 32 * 2 * 8 * 128 * 2.0);
  EXPECT_EQ(plan.plain.num_sums, 0);
  EXPECT_NEAR(plan.plain.total_ms(), 15.01 / (4.3 * 0.8), 0.01);
}

TEST(ClusterPlan, EightShareAll) {
  const ModelPlan plan = plan_model(llama_70b(), over(8), {});
  EXPECT_NEAR(plan.memory.matrices_bytes, 17.4e9, 0.1e9);
  EXPECT_DOUBLE_EQ(plan.memory.kv_bytes_per_token, 80 * 2 * 1 * 128 * 2.0);
  EXPECT_EQ(plan.plain.num_sums, 161);
  EXPECT_DOUBLE_EQ(plan.plain.bytes_per_sum, 8192 * 4.0);
  // 162 exchanges of 5 us, and what their bytes take: 161 * 32 KiB * 1.75 / 320 GB/s.
  EXPECT_NEAR(plan.plain.sums_ms, 0.81 + 161 * 32768 * 1.75 / 320e6, 1e-3);
}

TEST(ClusterPlan, AcrossNodesEverySumCostsMore) {
  ClusterConstants constants;
  const StepPlan one = plan_step(llama_70b(), over(8), constants, 1);
  const StepPlan two = plan_step(llama_70b(), over(16, 2), constants, 1);
  EXPECT_NEAR(two.read_ms, one.read_ms / 2, 0.1);  // KV heads are held twice, weights are not
  EXPECT_GT(two.sums_ms, one.sums_ms + 3);
  constants.cross_node_us = 250;
  EXPECT_NEAR(
      plan_step(llama_70b(), over(16, 2), constants, 1).sums_ms - two.sums_ms, 162 * 0.225, 1e-6);
}

TEST(ClusterPlan, WhatDoesNotFitHasNoRoomForTokens) {
  EXPECT_EQ(plan_model(llama_70b(), over(1), {.memory_gb = 80}).memory.kv_tokens, 0);
  const double on_eight = plan_model(llama_70b(), over(8), {.memory_gb = 80}).memory.kv_tokens;
  EXPECT_GT(on_eight, 1e6);
  ClusterShape fp8 = over(8);
  fp8.weight_bytes = 1;
  EXPECT_GT(plan_model(llama_70b(), fp8, {.memory_gb = 80}).memory.kv_tokens, on_eight);
}

TEST(ClusterPlan, KeysAreReadToo) {
  ClusterShape shape = over(8);
  const double none = plan_step(llama_70b(), shape, {}, 1).read_ms;
  shape.context_len = 4096;
  shape.num_sequences = 3;
  const double keys = 3 * 4096 * 80 * 2 * 128 * 2.0;
  EXPECT_NEAR(plan_step(llama_70b(), shape, {}, 1).read_ms - none, keys / (4.3e9 * 0.8), 1e-6);
}

TEST(ClusterPlan, SpeculationPaysMoreWhereSumsAreSlow) {
  const ModelConfig draft = synthetic_shape("llama-3.2-1b");
  const auto speedup = [&](double cross_node_us) {
    const ClusterConstants constants = {.cross_node_us = cross_node_us};
    return plan_speculation(llama_70b(), draft, over(16, 2), constants, 0.8, 0.8);
  };
  const SpeculationPlan fast = speedup(25);
  const SpeculationPlan slow = speedup(100);
  EXPECT_GT(fast.draft_len, 0);
  EXPECT_GT(fast.waiting_speedup, 1);
  EXPECT_GT(slow.waiting_speedup, fast.waiting_speedup);
  EXPECT_GE(slow.draft_len, fast.draft_len);
  EXPECT_EQ(fast.verify.rows, fast.draft_len + 1);
  // A draft as slow as the target is of no use.
  const SpeculationPlan none = plan_speculation(llama_8b(), llama_8b(), over(1), {}, 0.5, 0.5);
  EXPECT_LT(none.waiting_speedup, 1);
}

// The sizes of DeepSeek-V3's attention: every rank keeps the whole latent, of its heads it has a
// share.
TEST(ClusterPlan, LatentAttentionKeepsOneVectorAPosition) {
  ModelConfig model = llama_8b();
  model.n_heads = 128;
  model.n_kv_heads = 1;
  model.head_dim = 576;
  model.latent = {
      .kv_rank = 512, .q_rank = 1536, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  for (const int32_t ranks : {1, 8}) {
    const ModelPlan plan = plan_model(model, over(ranks), {});
    EXPECT_DOUBLE_EQ(plan.memory.kv_bytes_per_token, 32 * 576 * 2.0);
    const double heads = 128.0 / ranks;
    const double attention =
        4096.0 * (1536 + 576) + heads * 192 * 1536 + heads * 256 * 512 + heads * 128 * 4096;
    const double others = 3 * 4096.0 * 14336 / ranks;
    EXPECT_DOUBLE_EQ(plan.memory.matrices_bytes,
                     2 * (32 * (attention + others) + 128256.0 / ranks * 4096));
  }
}

TEST(ClusterPlan, MoreRanksThanHeadsAreRefused) {
  EXPECT_THROW(plan_model(llama_8b(), over(33), {}), Error);
}

// A row reads 8 of 128 experts, 768 units of 2048 inputs each; many rows read nearly all of them.
TEST(ClusterPlan, ExpertsAreReadAsRowsChooseThem) {
  const ModelConfig model = synthetic_shape("qwen3-30b-a3b@3");
  const ModelConfig dense = synthetic_shape("qwen3-30b-a3b@2");
  const ModelPlan plan = plan_model(model, over(1), {});
  const double expert = 3 * 2048.0 * 768;
  const double attention = 2048.0 * (4096 + 2 * 512) + 4096.0 * 2048;
  EXPECT_DOUBLE_EQ(
      plan.memory.matrices_bytes - plan_model(dense, over(1), {}).memory.matrices_bytes,
      2 * (attention + 128 * (expert + 2048)));
  const auto read_gb = [&](int32_t rows) {
    return plan_step(model, over(1), {}, rows).read_ms * 4.3 * 0.8;
  };
  const double all = plan.memory.matrices_bytes;
  EXPECT_NEAR(read_gb(1), 1e-9 * (all - 2 * 120 * expert), 1e-6);
  EXPECT_NEAR(read_gb(5) - read_gb(1), 2e-9 * expert * (35.3 - 8), 1e-3);
  EXPECT_NEAR(read_gb(1000), 1e-9 * all, 1e-6);
}

TEST(ClusterPlan, AShardRunsWithoutTheOthers) {
  RunConfig config;
  config.model = "embedded";
  config.threads = 1;
  const auto steps = time_shard(config, 2, {1, 5});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].rows, 5);
  for (const EmulatedStep& step : steps) EXPECT_GT(step.median_ms, 0);
}

}  // namespace
}  // namespace outrider
