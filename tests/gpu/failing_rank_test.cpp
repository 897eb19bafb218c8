// Jobs of several target ranks, each with an emulated GPU of its own, of which one fails: all ranks
// end with one sentence that names it. A rank that hangs hangs the test.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/base/log.h"
#include "runtime/ranks/loading/device_assignment.h"
#include "tests/base/error_sentence.h"
#include "tests/emulated/emulated.h"
#include "tests/gpu/failing_gpu.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

namespace emulated = gpu::emulated;
using Kind = GpuFailure::Kind;

class FailingRank : public ::testing::Test {
 protected:
  void SetUp() override {
    set_gpu_provider(failing_gpus);
    unsetenv("OUTRIDER_NCCL");
    fail_gpu({});
  }
  void TearDown() override {
    set_gpu_provider(gpu::cuda_backend);
    unsetenv("OUTRIDER_NCCL");
    emulated::set_devices({emulated::default_device()});
    emulated::set_work_time(emulated::WorkTime::kAtOnce);
  }
};

RunConfig config_of(int num_targets, const std::string& device_sums) {
  emulated::set_devices(
      std::vector<gpu::DeviceInfo>(static_cast<size_t>(num_targets), emulated::default_device()));
  RunConfig config = embedded_config(num_targets, 0);
  config.device = "cuda";
  config.activation_dtype = "float32";
  config.max_model_len = 64;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 24;
  config.kv_cache_memory_bytes = 8 << 20;
  config.device_sums = device_sums;
  return config;
}

// "rank 1 (target[1/2] on this process): "
std::string name_of(int rank, int num_targets) {
  return "rank " + std::to_string(rank) + " (" + RankLayout{num_targets, false}.name(rank) +
         " on this process): ";
}

// How the job's start fails.
std::string start_of(const RunConfig& config) {
  return error_of([&] { run_engine(config, [](const FrontEndContext&) {}); });
}

TEST_F(FailingRank, WhoCannotOpenItsGpuIsNamed) {
  for (const auto& [num_targets, rank] : {std::pair{2, 0}, {2, 1}, {4, 2}}) {
    fail_gpu({.kind = Kind::kOpen, .gpu = rank});
    EXPECT_EQ(start_of(config_of(num_targets, "auto")),
              name_of(rank, num_targets) + "GPU " + std::to_string(rank) +
                  " is in use by another process");
  }
}

TEST_F(FailingRank, WhoseGpuIsTooSmallIsNamed) {
  for (const auto& [num_targets, rank] : {std::pair{2, 0}, {2, 1}, {4, 3}}) {
    fail_gpu({.kind = Kind::kSmall, .gpu = rank});
    const std::string expected =
        name_of(rank, num_targets) + "the GPU's memory does not suffice: 0.9 ";
    EXPECT_EQ(start_of(config_of(num_targets, "auto")).substr(0, expected.size()), expected);
  }
}

TEST_F(FailingRank, WhoCannotShareItsMemoryIsNamedOrDoneWithout) {
  for (const auto& [num_targets, rank] : {std::pair{2, 1}, {3, 0}}) {
    fail_gpu({.kind = Kind::kShare, .gpu = rank});
    const std::string gpu = std::to_string(rank);
    EXPECT_EQ(start_of(config_of(num_targets, "exchange")),
              "the exchange between GPUs cannot be set up: rank " + gpu + ": GPU " + gpu +
                  " cannot share memory with other processes");
    setenv("OUTRIDER_NCCL", "/nowhere/libnccl.so.2", 1);
    EXPECT_EQ(start_of(config_of(num_targets, "auto")), "no error");
  }
}

// Every piece of memory that a rank takes while it starts, in turn.
TEST_F(FailingRank, WhoLacksMemoryAnywhereOnTheWayIsNamed) {
  std::vector<std::pair<const char*, int>> cases = {
      {"exchange", 1}, {"exchange", 0}, {"staged", 1}};
#ifdef FAKE_NCCL
  setenv("OUTRIDER_NCCL", FAKE_NCCL, 1);
  cases.push_back({"nccl", 1});
#endif
  for (const auto& [sums, rank] : cases) {
    RunConfig config = config_of(2, sums);
    config.enforce_eager = sums == std::string("nccl");  // the fake sums as it is called
    fail_gpu({.kind = Kind::kAllocate, .gpu = rank, .after = INT64_MAX});
    ASSERT_EQ(start_of(config), "no error");
    const int64_t num_pieces = num_calls_of_failing_gpu();
    ASSERT_GT(num_pieces, 10);
    const std::string gpu = std::to_string(rank);
    for (int64_t after = 0; after < num_pieces; ++after) {
      // Those of loading are many and alike.
      if (after > 2 && after < num_pieces - 12) continue;
      fail_gpu({.kind = Kind::kAllocate, .gpu = rank, .after = after});
      const std::string sentence = start_of(config);
      EXPECT_TRUE(sentence.starts_with(name_of(rank, 2)) ||
                  sentence.find(": rank " + gpu + ": ") != std::string::npos)
          << after << " of " << num_pieces << ": " << sentence;
      EXPECT_NE(sentence.find("GPU " + gpu + " has no "), std::string::npos) << sentence;
    }
  }
}

// The job ends with code 70, so it runs in a child of the test.
TEST_F(FailingRank, WhoseGpuFailsInAStepEndsTheJobWithItsName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Case {
    int num_targets;
    int rank;
    const char* sums;
  };
  for (const Case& one : {Case{2, 0, "exchange"}, {4, 3, "exchange"}, {2, 1, "staged"}}) {
    EXPECT_EXIT(
        {
          emulated::set_work_time(emulated::WorkTime::kOnThread);
          fail_gpu({.kind = Kind::kStep, .gpu = one.rank, .after = 3});
          run_asks(config_of(one.num_targets, one.sums), {{"Once upon a time", greedy(40)}});
          std::_Exit(0);
        },
        ::testing::ExitedWithCode(70),
        " E " + std::string(one.rank == 0 ? "coordinator.target" : "target") + "." +
            std::to_string(one.rank) + "/" + std::to_string(one.num_targets) +
            ". the GPU has fallen off the bus\n");
  }
}

}  // namespace
}  // namespace outrider::test
