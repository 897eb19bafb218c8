// Groups over device memory on the emulated device, their members being threads.
#include "runtime/comm/device_group.h"

#include "runtime/comm/world.h"
#include "runtime/ops/emulated/emulated.h"
#include "tests/comm/device_group_checks.h"

namespace outrider::test {
namespace {

const gpu::Backend& backend() { return gpu::emulated::backend(); }

TEST(DeviceGroup, SoloLeavesValuesAsTheyAre) {
  const auto device = backend().open(0);
  const auto stream = device->make_stream(gpu::Priority::kNormal);
  const auto group = make_solo_device_group(backend().ops);
  EXPECT_TRUE(group->is_capturable());
  check_sums(*group, *device, *stream, 40);
  check_sum_and_norm(*group, *device, backend().ops, *stream, 3, 24);
}

TEST(DeviceGroup, StagedSumsThroughTheHost) {
  for (const int num_ranks : {2, 3, 4}) {
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      // Pieces that do not divide the sizes.
      const auto group = make_staged_device_group(*device, backend().ops, *over_host, 64);
      EXPECT_FALSE(group->is_capturable());
      check_sums(*group, *device, *stream, 150);
      check_sum_and_norm(*group, *device, backend().ops, *stream, 5, 24);
    });
  }
}

}  // namespace
}  // namespace outrider::test
