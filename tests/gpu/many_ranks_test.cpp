// Whole jobs whose target is shared by several ranks, each with its GPU or all on one: the text is
// that of one rank, whatever the ranks sum with; under strict numerics all bits are.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/ranks/startup/device_check.h"
#include "tests/base/error_sentence.h"
#include "tests/gpu/job_case.h"

namespace outrider::test {
namespace {

class ManyRanks : public GpuJobs {
 protected:
  ManyRanks() { unsetenv("OUTRIDER_NCCL"); }
  ~ManyRanks() override { unsetenv("OUTRIDER_NCCL"); }
};

TEST_F(ManyRanks, HaveTheBitsOfOne) {
  const std::vector<Ask> asks = gpu_job_asks();
  const std::vector<Outcome> one = run_asks(gpu_job_config(1, "auto"), asks);
  ASSERT_EQ(one.size(), 2u);
  ASSERT_EQ(one[0].tokens.size(), static_cast<size_t>(asks[0].params.max_tokens));
  ASSERT_EQ(one[1].logprobs.size(), static_cast<size_t>(asks[1].params.max_tokens));
  for (const int num_targets : {2, 4, 8}) {
    EXPECT_EQ(record_of(run_asks(gpu_job_config(num_targets, "exchange"), asks)), record_of(one))
        << num_targets;
  }
  EXPECT_EQ(record_of(run_asks(gpu_job_config(2, "staged"), asks)), record_of(one));
}

#ifdef FAKE_NCCL
// The fake sums as it is called, so nothing can be recorded.
TEST_F(ManyRanks, HaveTheBitsOfOneOverNccl) {
  if (!gpu::is_emulated()) GTEST_SKIP() << "for the fake NCCL";
  setenv("OUTRIDER_NCCL", FAKE_NCCL, 1);
  const std::vector<Outcome> one = run_asks(gpu_job_config(1, "auto"), gpu_job_asks());
  RunConfig config = gpu_job_config(2, "nccl");
  config.enforce_eager = true;
  EXPECT_EQ(record_of(run_asks(config, gpu_job_asks())), record_of(one));
}
#endif

#ifdef FAKE_NCCL
constexpr const char* kNoNccl =
    "NCCL cannot be used: rank 0: NCCL could not be loaded (OUTRIDER_NCCL names the file to take): "
    "/nowhere/libnccl.so.2";
#else
constexpr const char* kNoNccl =
    "NCCL cannot be used: rank 0: this build has no NCCL: build it where nccl.h and nvcc are";
#endif

TEST_F(ManyRanks, WhatCannotBeHadEndsTheJobWithOneSentence) {
  setenv("OUTRIDER_NCCL", "/nowhere/libnccl.so.2", 1);
  for (const int num_targets : {2, 3}) {
    RunConfig config = gpu_job_config(num_targets, "nccl");
    config.numerics = "fast";
    EXPECT_TRUE(fails_with([&] { run_asks(config, gpu_job_asks()); }, kNoNccl));
  }
}

// A rank that cannot load must not leave the others in the set-up of their sums.
TEST_F(ManyRanks, ARankWithoutMemoryEndsTheJob) {
  RunConfig config = gpu_job_config(2, "exchange");
  config.gpu_memory_utilization = 0.01;
  config.kv_cache_memory_bytes = 0;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 400000;
  EXPECT_TRUE(
      fails_with([&] { run_asks(config, gpu_job_asks()); }, "the GPU's memory does not suffice"));
}

// As under Slurm's --gpus-per-task: each rank knows its GPU by the number 0.
TEST_F(ManyRanks, AreCountedByTheGpuItself) {
  const RankLayout layout = {.num_targets = 3, .has_draft = true};
  const std::vector<std::string> gpus = {"a", "b", "a", "b"};  // by rank
  run_in_process(4, [&](World& world) {
    DeviceAssignment assignment = {.backend = &gpu::test_backend(),
                                   .device = gpu::test_backend().open(0),
                                   .num_visible = 1,
                                   .num_targets = 3,
                                   .has_draft = true};
    DeviceDescriptor claim = descriptor_of(assignment);
    EXPECT_NE(claim.uuid, "");
    if (gpus[static_cast<size_t>(world.rank())] == "b") claim.uuid = "GPU-of-others";
    const Bytes answer = check_devices(world, layout, encode_descriptor(claim));
    settle_assignment(answer, assignment);
    EXPECT_EQ(assignment.num_targets, 2);  // ranks 0 and 2
    EXPECT_FALSE(assignment.has_draft);    // it is with rank 1
  });
}

}  // namespace
}  // namespace outrider::test
