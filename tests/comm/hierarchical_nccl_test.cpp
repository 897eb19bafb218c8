// Hierarchical groups with a fake NCCL (fake_nccl.cpp) between hosts.
#include <cstdlib>

#include "runtime/comm/device/hierarchical_group.h"
#include "runtime/comm/world/world.h"
#include "tests/base/tries.h"
#include "tests/comm/hierarchical_checks.h"
#include "tests/comm/stuck_stream.h"

namespace outrider::test {
namespace {

// Body per member of hosts of two; every member's error, "" where there was none.
std::vector<std::string> errors(int num_ranks,
                                double limit_s,
                                const std::function<void(DeviceGroup&, StuckStream&)>& body) {
  std::vector<std::string> found(static_cast<size_t>(num_ranks));
  run_in_process(num_ranks, [&](World& world) {
    const auto device = stuck_backend().open(0);
    const auto over_host = world.make_target_group(num_ranks);
    std::unique_ptr<DeviceGroup> group;
    StuckStream stream(*device);
    try {
      group = make_hierarchical_group(
          *device,
          stuck_backend(),
          *over_host,
          {.within = {.max_count = 96, .limit_s = 60},
           .between = {.library = FAKE_NCCL, .max_count = 96, .limit_s = limit_s},
           .share_bytes = 300,
           .host = world.rank() / 2});
      body(*group, stream);
    } catch (const Error& error) {
      found[static_cast<size_t>(world.rank())] = error.what();
    }
    uint64_t done = 1;
    over_host->all_reduce_sum(std::span(&done, 1));  // its memory goes last
  });
  return found;
}

TEST(HierarchicalNccl, Sums) {
  for (const int num_ranks : {4, 6, 8}) {  // four hosts: where the tree is not rank order
    const auto found = errors(num_ranks, 80, [](DeviceGroup& group, StuckStream& stream) {
      EXPECT_EQ(
          group.name(),
          std::to_string(group.size() / 2) + " x 2: exchange within a host, nccl 2.28.9 between");
      EXPECT_TRUE(group.is_capturable());
      const auto device = stuck_backend().open(0);
      check_sums(group, *device, stream, 160, sum_by_hosts(2));
      check_sum_and_norm(group, *device, stuck_backend().ops, stream, 3, 24, sum_by_hosts(2));
      check_sum_and_norm(group, *device, stuck_backend().ops, stream, 4, 24, sum_by_hosts(2));
    });
    for (const std::string& error : found) EXPECT_EQ(error, "");
  }
}

TEST(HierarchicalNccl, ADeadRankIsNamedOnItsHostAndLeftOnTheOther) {
  setenv("FAKE_NCCL", "silent", 1);  // NCCL's second sum is never done
  const std::string gave_up = "NCCL: the other ranks' GPUs did not answer within 2 s";
  const std::vector<std::string> expected = {
      gave_up, gave_up, "the exchange between GPUs broke off: rank 2 waited 1.5 s for rank 3", ""};
  std::vector<std::string> found;
  EXPECT_TRUE(in_one_of_three_tries([&] {
    found = errors(4, 2, [](DeviceGroup& group, StuckStream& stream) {
      const auto device = stuck_backend().open(0);
      const gpu::Buffer values(*device, 64);
      const auto sum_once = [&] {
        group.all_reduce_sum(stream, values.as<float>(), 16, Fold::kTree);
        group.wait(stream);
      };
      sum_once();
      if (group.rank() != 3) sum_once();
    });
    return found == expected;
  })) << ::testing::PrintToString(found);
  unsetenv("FAKE_NCCL");
}

}  // namespace
}  // namespace outrider::test
