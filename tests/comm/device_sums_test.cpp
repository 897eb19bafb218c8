// What sums over GPUs a job takes: with the emulated device, members being threads.
#include "runtime/comm/device/device_sums.h"

#include <cstdlib>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/comm/world/world.h"
#include "tests/emulated/emulated.h"
#include "runtime/ops/gpu/exchange.h"
#include "tests/comm/device_group_checks.h"
#include "tests/comm/fake_nccl.h"

namespace outrider::test {
namespace {

namespace emulated = gpu::emulated;

// The emulated stream is what the fake NCCL is given; it asks a FakeQueue whether it is stuck.
const gpu::Backend& nccl_backend() {
  static const gpu::Backend backend = [] {
    gpu::Backend made = emulated::backend();
    made.native_stream = [](gpu::Stream&) -> void* {
      static FakeQueue queue;
      return &queue;
    };
    return made;
  }();
  return backend;
}

class DeviceSumsChoice : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kError);
    unsetenv("FAKE_NCCL");
  }
  void TearDown() override { emulated::set_devices({emulated::default_device()}); }
  static void show_devices(size_t count) {
    emulated::set_devices(std::vector<gpu::DeviceInfo>(count, emulated::default_device()));
  }

  // The name of the group that all members got, its sums being checked; or the error of all.
  static std::string choose(int num_ranks,
                            DeviceSums wanted,
                            const std::function<gpu::Backend(int rank)>& backend_of,
                            int ranks_per_host = 0) {
    std::vector<std::string> got(static_cast<size_t>(num_ranks));
    std::vector<gpu::Backend> backends;
    for (int r = 0; r < num_ranks; ++r) backends.push_back(backend_of(r));
    run_in_process(num_ranks, [&](World& world) {
      const gpu::Backend& backend = backends[static_cast<size_t>(world.rank())];
      const auto device = backend.open(world.rank() % backend.num_devices());
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      std::string& mine = got[static_cast<size_t>(world.rank())];
      try {
        const auto group =
            make_device_group(*device,
                              backend,
                              *over_host,
                              {.wanted = wanted,
                               .max_count = 4 * 72,
                               .limit_s = 20,
                               .nccl_library = FAKE_NCCL,
                               .host = ranks_per_host == 0 ? -1 : world.rank() / ranks_per_host});
        // A hierarchical group's own tests know its order.
        if (ranks_per_host == 0) {
          check_sums(*group, *device, *stream, 650);
          check_sum_and_norm(*group, *device, backend.ops, *stream, 4, 72);
        }
        mine = group->name();
        uint64_t done = 1;
        over_host->all_reduce_sum(std::span(&done, 1));  // memory that others write into goes last
      } catch (const Error& error) {
        mine = error.what();
      }
    });
    for (const std::string& name : got) EXPECT_EQ(name, got[0]);
    return got[0];
  }
  static gpu::Backend plain(int) { return nccl_backend(); }
  static gpu::Backend without_peers(int rank) {
    gpu::Backend made = nccl_backend();
    if (rank == 1) {
      made.peers.share = [](gpu::Device&, void*) -> gpu::MemoryHandle {
        throw Error("GPU 1 cannot share memory with other processes");
      };
    }
    return made;
  }
  // The memory of others can be mapped, but what is written there comes out otherwise.
  static gpu::Backend lying(int rank) {
    static const gpu::OpTable ops = nccl_backend().ops;
    gpu::Backend made = nccl_backend();
    if (rank == 1) {
      made.ops.exchange_sum = [](gpu::Stream& stream, const gpu::ExchangeSumArgs& args) {
        ops.exchange_sum(stream, args);
        args.values[args.count / 2] += 1;
      };
    }
    return made;
  }
};

TEST_F(DeviceSumsChoice, AutoTakesTheExchangeOnOneHost) {
  EXPECT_EQ(choose(1, DeviceSums::kAuto, plain), "solo");
  EXPECT_EQ(choose(2, DeviceSums::kAuto, plain), "exchange");  // on one GPU
  show_devices(4);
  EXPECT_EQ(choose(4, DeviceSums::kAuto, plain), "exchange");
}

TEST_F(DeviceSumsChoice, AutoTakesNcclWhereEachHasItsGpu) {
  show_devices(3);
  EXPECT_EQ(choose(3, DeviceSums::kAuto, without_peers), "nccl 2.28.9");
  EXPECT_EQ(choose(3, DeviceSums::kAuto, lying), "nccl 2.28.9");
  show_devices(9);
  EXPECT_EQ(choose(9, DeviceSums::kAuto, plain), "nccl 2.28.9");
}

TEST_F(DeviceSumsChoice, OnSeveralHosts) {
  show_devices(4);
  EXPECT_EQ(choose(4, DeviceSums::kAuto, plain, 2),
            "2 x 2: exchange within a host, nccl 2.28.9 between");
  EXPECT_EQ(choose(3, DeviceSums::kAuto, plain, 1), "nccl 2.28.9");
  EXPECT_EQ(choose(3, DeviceSums::kAuto, plain, 2), "nccl 2.28.9");  // 2 ranks and 1
}

TEST_F(DeviceSumsChoice, AutoTakesTheHostWhereNothingElseGoes) {
  EXPECT_EQ(choose(2, DeviceSums::kAuto, without_peers), "staged");  // both on one GPU
  show_devices(2);
  setenv("FAKE_NCCL", "no_id", 1);
  EXPECT_EQ(choose(2, DeviceSums::kAuto, without_peers), "staged");
}

TEST_F(DeviceSumsChoice, WhatIsAskedForIsTakenOrIsOneSentence) {
  show_devices(2);
  EXPECT_EQ(choose(2, DeviceSums::kExchange, plain), "exchange");
  EXPECT_EQ(choose(2, DeviceSums::kNccl, plain), "nccl 2.28.9");
  EXPECT_EQ(choose(2, DeviceSums::kStaged, plain), "staged");
  EXPECT_EQ(choose(2, DeviceSums::kExchange, without_peers),
            "the exchange between GPUs cannot be set up: rank 1: GPU 1 cannot share memory with "
            "other processes");
  EXPECT_EQ(choose(2, DeviceSums::kExchange, lying),
            "the exchange between GPUs does not work: rank 1: what other ranks' GPUs wrote did not "
            "arrive as written");
  EXPECT_EQ(choose(9, DeviceSums::kExchange, plain),
            "the exchange between GPUs is for at most 8 ranks, these are 9");
  setenv("FAKE_NCCL", "no_id", 1);
  EXPECT_EQ(choose(2, DeviceSums::kNccl, plain),
            "NCCL cannot be used: rank 0: NCCL could not begin: what the fake says");
}

TEST(DeviceSums, NamesAndBytes) {
  EXPECT_EQ(device_sums_from_name("auto"), DeviceSums::kAuto);
  EXPECT_EQ(device_sums_from_name("staged"), DeviceSums::kStaged);
  EXPECT_THROW(device_sums_from_name("ring"), Error);
  EXPECT_EQ(device_sums_bytes(DeviceSums::kAuto, 1, 1000), 0u);
  EXPECT_EQ(device_sums_bytes(DeviceSums::kStaged, 4, 1000), 0u);
  EXPECT_EQ(device_sums_bytes(DeviceSums::kNccl, 4, 1000), 16000u);
  EXPECT_EQ(device_sums_bytes(DeviceSums::kExchange, 4, 1000), 3u * 5 * 4000);
  EXPECT_EQ(device_sums_bytes(DeviceSums::kAuto, 4, 1000), 3u * 5 * 4000);
  EXPECT_EQ(device_sums_bytes(DeviceSums::kAuto, 16, 1000), 3u * 9 * 4000 + 64000u);
}

}  // namespace
}  // namespace outrider::test
