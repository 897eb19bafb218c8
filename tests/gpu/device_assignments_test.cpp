// Which GPU a rank takes, who it thinks is there too, and what that leaves for KV memory; and that
// a job whose ranks share a GPU says so.
#include <gtest/gtest.h>

#include "runtime/base/log.h"
#include "runtime/ranks/loading/gpu_memory.h"
#include "runtime/ranks/loading/model_names.h"
#include "tests/base/error_sentence.h"
#include "tests/emulated/emulated.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

namespace emulated = gpu::emulated;

class DeviceAssignments : public ::testing::Test {
 protected:
  void SetUp() override { set_gpu_provider(emulated::backend); }
  void TearDown() override {
    set_gpu_provider(gpu::cuda_backend);
    show_devices(1);
  }
  static void show_devices(size_t count) {
    emulated::set_devices(std::vector<gpu::DeviceInfo>(count, emulated::default_device()));
  }
};

struct Taken {
  int ordinal;
  int num_targets;
  bool has_draft;
  bool operator==(const Taken&) const = default;
};

Taken take(const RunConfig& config, const HostPlace& place, bool draft_on_gpu = true) {
  const DeviceAssignment assignment = assign_device(config, place, draft_on_gpu);
  return {assignment.device->info().ordinal, assignment.num_targets, assignment.has_draft};
}

TEST_F(DeviceAssignments, PlacesGoRoundTheGpusOfTheHost) {
  show_devices(4);
  const RunConfig config;
  const auto place = [](int index) {
    return HostPlace{.index = index, .num_targets = 6, .has_draft = true};
  };
  EXPECT_EQ(take(config, place(0)), (Taken{0, 2, false}));  // with target 4
  EXPECT_EQ(take(config, place(2)), (Taken{2, 1, true}));
  EXPECT_EQ(take(config, place(3)), (Taken{3, 1, false}));
  EXPECT_EQ(take(config, place(5)), (Taken{1, 2, false}));
  EXPECT_EQ(take(config, place(6)), (Taken{2, 1, true}));  // the draft itself
  EXPECT_EQ(take(config, place(2), false), (Taken{2, 1, false}));
  EXPECT_EQ(assign_device(config, place(1), true).num_visible, 4);
  EXPECT_FALSE(assign_device(config, place(1), true).is_given);
}

TEST_F(DeviceAssignments, WhoIsToldTakesThatOneAndSoDoAllOfTheHost) {
  show_devices(4);
  RunConfig config;
  config.cuda_device = 3;
  const HostPlace place = {.index = 1, .num_targets = 2, .has_draft = true};
  EXPECT_EQ(take(config, place), (Taken{3, 2, true}));
  EXPECT_TRUE(assign_device(config, place, true).is_given);
  config.cuda_device = 4;
  EXPECT_EQ(error_of([&] { take(config, place); }),
            "cuda_device 4 does not exist; this machine shows 4 GPU(s)");
}

RunConfig config_of(int num_targets) {
  RunConfig config = embedded_config(num_targets, 0);
  config.device = "cuda";
  config.activation_dtype = "float32";
  config.max_model_len = 96;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 64;
  return config;
}

TEST_F(DeviceAssignments, WhoSharesAGpuHasHalfOfItsMemory) {
  const RankLayout layout = {.num_targets = 2};
  RunConfig config = config_of(2);
  const EngineSizes sizes = engine_sizes(config, model_config_of(config, Role::kTarget), layout);
  DeviceAssignment assignment = assign_device(config, {.index = 0, .num_targets = 2}, false);
  ASSERT_EQ(assignment.num_targets, 2);
  const int32_t shared = gpu_blocks(config, sizes, layout, assignment);
  assignment.num_targets = 1;
  const int32_t alone = gpu_blocks(config, sizes, layout, assignment);
  EXPECT_LE(shared, alone / 2);
  EXPECT_GE(shared, alone / 2 - alone / 20);
  // What is allowed is each rank's own.
  config.kv_cache_memory_bytes = 4 << 20;
  const int32_t allowed = gpu_blocks(config, sizes, layout, assignment);
  assignment.num_targets = 2;
  EXPECT_EQ(gpu_blocks(config, sizes, layout, assignment), allowed);
  EXPECT_LT(allowed, shared);
}

TEST_F(DeviceAssignments, MemoryThatDoesNotSufficeIsOneSentence) {
  const RankLayout layout = {.num_targets = 1};
  RunConfig config = config_of(1);
  const EngineSizes sizes = engine_sizes(config, model_config_of(config, Role::kTarget), layout);
  const DeviceAssignment assignment = assign_device(config, {}, false);
  config.gpu_memory_utilization = 0.0005;
  EXPECT_TRUE(fails_with([&] { gpu_blocks(config, sizes, layout, assignment); },
                         "the GPU's memory does not suffice: 0.0005 (gpu_memory_utilization) of "
                         "8.59 GB are 0.00 GB; 0.0"));
  config.gpu_memory_utilization = 0.9;
  config.kv_cache_memory_bytes = 1 << 16;
  EXPECT_TRUE(fails_with([&] { gpu_blocks(config, sizes, layout, assignment); },
                         "kv_cache_memory_bytes 65536 holds "));
  EXPECT_TRUE(fails_with([&] { gpu_blocks(config, sizes, layout, assignment); },
                         " of max_model_len 96 with a draft: raise the one or lower the other"));
}

// What a job warns of while it starts.
std::string warnings_of(RunConfig config) {
  config.kv_cache_memory_bytes = 8 << 20;
  set_log_level(LogLevel::kWarning);
  ::testing::internal::CaptureStderr();
  run_engine(config, [](const FrontEndContext&) {});
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(DeviceAssignments, AJobWhoseRanksShareAGpuSaysSo) {
  const std::string sentence =
      " W coordinator+target[0/2] ranks 0 (coordinator+target[0/2]), 1 (target[1/2]) share GPU 0 "
      "of this process, where they see 1 GPU(s): they take turns and share its memory\n";
  const std::string warned = warnings_of(config_of(2));
  EXPECT_TRUE(warned.ends_with(sentence)) << warned;
  EXPECT_EQ(std::count(warned.begin(), warned.end(), '\n'), 1) << warned;
  show_devices(2);
  EXPECT_EQ(warnings_of(config_of(2)), "");
  RunConfig given = config_of(2);
  given.cuda_device = 1;
  EXPECT_EQ(warnings_of(given), "");
  gpu::DeviceInfo smaller = emulated::default_device();
  smaller.name = "smaller one";
  smaller.total_bytes = smaller.free_bytes = size_t{4} << 30;
  emulated::set_devices({emulated::default_device(), smaller});
  const std::string mixed = warnings_of(config_of(2));
  EXPECT_NE(mixed.find(" W coordinator+target[0/2] rank 1 has a smaller one (compute "
                       "capability 8.0, 4.3 GB) where rank 0 has a emulated (compute capability "
                       "8.0, 8.6 GB): "),
            std::string::npos)
      << mixed;
  EXPECT_EQ(std::count(mixed.begin(), mixed.end(), '\n'), 1) << mixed;
}

}  // namespace
}  // namespace outrider::test
