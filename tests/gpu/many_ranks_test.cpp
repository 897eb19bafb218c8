// Whole jobs whose target is shared by several ranks, each with its GPU or all on one: the text is
// that of one rank, whatever the ranks sum with; under strict numerics all bits are.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/ranks/gpu_call.h"
#include "tests/base/error_sentence.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

class ManyRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    set_gpu_provider(gpu::test_backend);
    unsetenv("OUTRIDER_NCCL");
  }
  void TearDown() override {
    set_gpu_provider(gpu::cuda_backend);
    unsetenv("OUTRIDER_NCCL");
  }
};

RunConfig config_of(int num_targets, const std::string& device_sums) {
  RunConfig config = embedded_config(num_targets, 0);
  config.device = "cuda";
  config.activation_dtype = "float32";
  config.numerics = "strict";
  config.max_model_len = 64;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 24;  // prompts in pieces
  config.kv_cache_memory_bytes = 8 << 20;
  config.device_sums = device_sums;
  return config;
}

std::vector<Ask> asks() {
  SamplingParams scored = seeded(0.9f, 11, 5);
  scored.num_logprobs = 2;
  return {{"Once upon a time there was a king who", greedy(6)}, {"In the forest", scored}};
}

// Equal to the bit, also what the samples' log-probabilities were.
void expect_same(const std::vector<Outcome>& found, const std::vector<Outcome>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].error, "");
    EXPECT_EQ(found[i].tokens, expected[i].tokens) << i;
    ASSERT_EQ(found[i].logprobs.size(), expected[i].logprobs.size()) << i;
    for (size_t t = 0; t < found[i].logprobs.size(); ++t) {
      EXPECT_EQ(std::bit_cast<uint32_t>(found[i].logprobs[t].logprob),
                std::bit_cast<uint32_t>(expected[i].logprobs[t].logprob));
      EXPECT_TRUE(found[i].logprobs[t].top == expected[i].logprobs[t].top);
    }
  }
}

TEST_F(ManyRanks, HaveTheBitsOfOne) {
  const std::vector<Outcome> expected = run_asks(config_of(1, "auto"), asks());
  ASSERT_EQ(expected.size(), 2u);
  ASSERT_EQ(expected[0].tokens.size(), 6u);
  ASSERT_EQ(expected[1].logprobs.size(), 5u);
  for (const int num_targets : {2, 4, 8}) {
    expect_same(run_asks(config_of(num_targets, "exchange"), asks()), expected);
  }
  expect_same(run_asks(config_of(2, "staged"), asks()), expected);
}

#ifdef FAKE_NCCL
// The fake sums as it is called, so nothing can be recorded.
TEST_F(ManyRanks, HaveTheBitsOfOneOverNccl) {
  if (std::string(gpu::test_backend().name) != "emulated") GTEST_SKIP() << "for the fake NCCL";
  setenv("OUTRIDER_NCCL", FAKE_NCCL, 1);
  const std::vector<Outcome> expected = run_asks(config_of(1, "auto"), asks());
  RunConfig config = config_of(2, "nccl");
  config.enforce_eager = true;
  expect_same(run_asks(config, asks()), expected);
}
#endif

TEST_F(ManyRanks, WhatCannotBeHadEndsTheJobWithOneSentence) {
  setenv("OUTRIDER_NCCL", "/nowhere/libnccl.so.2", 1);
  for (const int num_targets : {2, 3}) {
    RunConfig config = config_of(num_targets, "nccl");
    config.numerics = "fast";
    EXPECT_TRUE(fails_with([&] { run_asks(config, asks()); },
                           "NCCL cannot be used: rank 0: NCCL could not be loaded (OUTRIDER_NCCL "
                           "names the file to take): /nowhere/libnccl.so.2"));
  }
}

// A rank that cannot load must not leave the others in the set-up of their sums.
TEST_F(ManyRanks, ARankWithoutMemoryEndsTheJob) {
  RunConfig config = config_of(2, "exchange");
  config.gpu_memory_utilization = 0.01;
  config.kv_cache_memory_bytes = 0;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 400000;
  EXPECT_TRUE(fails_with([&] { run_asks(config, asks()); }, "the GPU's memory does not suffice"));
}

GpuClaim claim_on(const std::string& uuid, int32_t compute_capability) {
  return {.uuid = uuid,
          .name = "some GPU",
          .compute_capability = compute_capability,
          .total_bytes = size_t{80} << 30,
          .num_visible = 1};
}

// What every rank hears when ranks have these GPUs; "" for none.
std::vector<std::string> heard(const RankLayout& layout, const std::vector<GpuClaim>& claims) {
  std::vector<std::string> sentences(claims.size());
  run_in_process(layout.num_ranks(), [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    sentences[rank] = refusal_in(call_gpus(world, layout, encode_claim(claims[rank])));
  });
  for (const std::string& sentence : sentences) EXPECT_EQ(sentence, sentences[0]);
  return sentences;
}

TEST(GpuCall, OneSentenceForAll) {
  const RankLayout layout = {.num_targets = 2, .has_draft = true};
  EXPECT_EQ(heard(layout, {claim_on("a", 90), claim_on("b", 90), claim_on("c", 80)})[0], "");
  EXPECT_EQ(heard(layout, {claim_on("a", 90), claim_on("b", 80), claim_on("c", 90)})[0],
            "rank 1 (target[1/2] on this process): its GPU is a some GPU (compute capability 8.0, "
            "85.9 GB) where rank 0's is a some GPU (compute capability 9.0, 85.9 GB): the target "
            "needs GPUs of one generation");
  GpuClaim without;
  without.problem = "device 'cuda': there is no GPU on this machine";
  EXPECT_EQ(heard(layout, {claim_on("a", 90), claim_on("b", 90), without})[0],
            "rank 2 (draft on this process): device 'cuda': there is no GPU on this machine");
}

// As under Slurm's --gpus-per-task: each rank knows its GPU by the number 0.
TEST_F(ManyRanks, AreCountedByTheGpuItself) {
  const RankLayout layout = {.num_targets = 3, .has_draft = true};
  const std::vector<std::string> gpus = {"a", "b", "a", "b"};  // by rank
  run_in_process(4, [&](World& world) {
    GpuSeat seat = {.backend = &gpu::test_backend(),
                    .device = gpu::test_backend().open(0),
                    .num_visible = 1,
                    .num_targets = 3,
                    .has_draft = true};
    GpuClaim claim = claim_of(seat);
    EXPECT_NE(claim.uuid, "");
    if (gpus[static_cast<size_t>(world.rank())] == "b") claim.uuid = "GPU-of-others";
    const Bytes answer = call_gpus(world, layout, encode_claim(claim));
    settle_seat(answer, seat);
    EXPECT_EQ(seat.num_targets, 2);  // ranks 0 and 2
    EXPECT_FALSE(seat.has_draft);    // it is with rank 1
  });
}

}  // namespace
}  // namespace outrider::test
