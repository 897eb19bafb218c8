// What `bench comm --device cuda` times, on the emulated device with threads as ranks: right by
// every group, and told wrong when a bit is.
#include "runtime/commands/bench/comm/device_comm_cases.h"

#include <gtest/gtest.h>

#include "runtime/comm/device/hierarchical_group.h"
#include "tests/emulated/emulated.h"

namespace outrider::test {
namespace {

const gpu::Backend& backend() { return gpu::emulated::backend(); }

CommSizes small_sizes() {
  return {
      .hidden_dim = 48, .rows = {1, 5}, .num_seqs = {1, 3}, .draft_len = 4, .fold = Fold::kTree};
}

// One that sums like another, but for a bit of rank 0's first value.
class SpoiltGroup final : public DeviceGroup {
 public:
  SpoiltGroup(gpu::Device& device, std::unique_ptr<DeviceGroup> group)
      : DeviceGroup(backend().ops), device_(device), group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string name() const override { return "spoilt"; }
  bool is_capturable() const override { return false; }
  void all_reduce_sum(gpu::Stream& stream, float* values, size_t count, Fold fold) override {
    group_->all_reduce_sum(stream, values, count, fold);
    stream.wait();
    if (rank() != 0) return;
    uint32_t word = 0;
    device_.download_now(&word, values, sizeof word);
    word ^= 1u << 22;
    device_.upload_now(values, &word, sizeof word);
  }

 private:
  gpu::Device& device_;
  std::unique_ptr<DeviceGroup> group_;
};

void expect_right(std::vector<CommCase> cases) {
  for (const CommCase& one : cases) {
    for (uint64_t turn = 1; turn <= 3; ++turn) {
      EXPECT_EQ(one.num_wrong(turn), 0u) << one.message;
      for (int i = 0; i < 3; ++i) one.run();
      if (one.finish) one.finish();
    }
  }
}

TEST(DeviceCommCases, NothingIsWrongByAnyGroup) {
  run_in_process(4, [](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(4);
    DeviceCommBench bench(*device, backend().ops, *over_host, small_sizes());
    EXPECT_EQ(bench.max_count(), 240u);
    const auto staged =
        make_staged_device_group(*device, backend().ops, *over_host, bench.max_count());
    const auto exchange = make_exchange_group(
        *device, backend(), *over_host, {.max_count = bench.max_count(), .limit_s = 60});
    const auto by_hosts =
        make_hierarchical_group(*device,
                                backend(),
                                *over_host,
                                {.within = {.max_count = bench.max_count(), .limit_s = 60},
                                 .between = {.max_count = bench.max_count(), .limit_s = 80},
                                 .between_through_host = true,
                                 .host = world.rank() / 2});
    expect_right(bench.sums_of(*staged, "staged"));
    expect_right(bench.sums_of(*exchange, "exchange"));
    expect_right(bench.sums_of(*by_hosts, "hierarchical"));
    expect_right(bench.keys());
    uint64_t all_done = 1;
    over_host->all_reduce_sum(std::span(&all_done, 1));  // memory goes last
  });
}

TEST(DeviceCommCases, AWrongBitIsCounted) {
  run_in_process(2, [](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(2);
    DeviceCommBench bench(*device, backend().ops, *over_host, small_sizes());
    SpoiltGroup spoilt(*device, make_staged_device_group(*device, backend().ops, *over_host, 240));
    for (const CommCase& one : bench.sums_of(spoilt, "spoilt")) {
      const uint64_t wrong = one.num_wrong(1);
      if (world.rank() != 0) {
        EXPECT_EQ(wrong, 0u) << one.message;
      } else if (one.message == "sums, spoilt") {
        EXPECT_EQ(wrong, 1u);
      } else {
        EXPECT_GE(wrong, 1u) << one.message;  // of the row's norm at least the value itself
      }
    }
  });
}

TEST(DeviceCommCases, SizesAreTheRounds) {
  run_in_process(2, [](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(2);
    DeviceCommBench bench(*device, backend().ops, *over_host, small_sizes());
    const auto staged = make_staged_device_group(*device, backend().ops, *over_host, 240);
    const auto sums = bench.sums_of(*staged, "staged");
    ASSERT_EQ(sums.size(), 4u);
    EXPECT_EQ(sums[0].message, "sums, staged");
    EXPECT_EQ(sums[1].message, "sums and norm, staged");
    EXPECT_EQ(sums[3].num_bytes, 5u * 48 * 4);
    EXPECT_EQ(sums[3].bus_factor, 1.0);
    const auto keys = bench.keys();
    ASSERT_EQ(keys.size(), 2u);
    EXPECT_EQ(keys[1].num_bytes, 8u * 3 * 5);
  });
}

}  // namespace
}  // namespace outrider::test
