// Groups over device memory on one device, their members being threads; on a real GPU the
// exchange's launches of all of them must run at the same time.
#include "runtime/comm/device/device_group.h"

#include <atomic>

#include "runtime/comm/device/exchange_group.h"
#include "runtime/comm/world/world.h"
#include "runtime/ops/gpu/exchange.h"
#include "tests/base/error_sentence.h"
#include "tests/comm/device_group_checks.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::test {
namespace {

const gpu::Backend& backend() { return gpu::test_backend(); }

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
      const auto meet = meeting_of(*over_host);
      check_sums(*group, *device, *stream, 150, expected_sum, meet);
      check_sum_and_norm(*group, *device, backend().ops, *stream, 5, 24, expected_sum, meet);
    });
  }
}

TEST(DeviceGroup, ExchangeSumsByItself) {
  for (const int num_ranks : {1, 2, 3, 4, 8}) {
    for (const size_t two_shot_bytes : {size_t{1} << 30, size_t{200}}) {
      run_in_process(num_ranks, [&](World& world) {
        const auto device = backend().open(0);
        const auto stream = device->make_stream(gpu::Priority::kNormal);
        const auto over_host = world.make_target_group(num_ranks);
        const auto group = make_exchange_group(
            *device,
            backend(),
            *over_host,
            {.max_count = 4 * 72, .two_shot_bytes = two_shot_bytes, .limit_s = 60});
        EXPECT_TRUE(group->is_capturable());
        const auto meet = meeting_of(*over_host);
        check_sums(*group, *device, *stream, 650, expected_sum, meet);  // in pieces
        check_sum_and_norm(*group, *device, backend().ops, *stream, 4, 72, expected_sum, meet);
        check_sum_and_norm(*group,
                           *device,
                           backend().ops,
                           *stream,
                           5,
                           72,
                           expected_sum,
                           meet);  // not in one launch
        check_sum_and_norm(*group, *device, backend().ops, *stream, 4, 70, expected_sum, meet);
      });
    }
  }
}

TEST(DeviceGroup, ARecordedExchangeIsReplayed) {
  constexpr int kRanks = 2;
  run_in_process(kRanks, [&](World& world) {
    const auto device = backend().open(0);
    const auto stream = device->make_stream(gpu::Priority::kNormal);
    const auto over_host = world.make_target_group(kRanks);
    const auto group =
        make_exchange_group(*device, backend(), *over_host, {.max_count = 64, .limit_s = 60});
    const gpu::Buffer values(*device, 50 * sizeof(float));
    stream->begin_recording();
    group->all_reduce_sum(*stream, values.as<float>(), 50, Fold::kRankOrder);
    const auto graph = stream->end_recording();
    meeting_of (*over_host)();
    for (unsigned draw = 0; draw < 20; ++draw) {
      std::vector<float> host = values_of(world.rank(), draw, 50);
      device->upload_now(values.data(), host.data(), 50 * sizeof(float));
      stream->replay(*graph);
      group->wait(*stream);
      device->download_now(host.data(), values.data(), 50 * sizeof(float));
      EXPECT_EQ(first_difference(host, expected_sum(kRanks, draw, 50, Fold::kRankOrder)), -1);
    }
  });
}

TEST(DeviceGroup, AnExchangeWithoutAPeerEndsAndNamesIt) {
  for (const int num_ranks : {2, 4}) {
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      const auto group = make_exchange_group(
          *device, backend(), *over_host, {.max_count = 64, .two_shot_bytes = 0, .limit_s = 1.5});
      const gpu::Buffer values(*device, 64 * sizeof(float));
      const auto sum = [&] {
        group->all_reduce_sum(*stream, values.as<float>(), 64, Fold::kRankOrder);
        group->wait(*stream);
      };
      sum();
      if (world.rank() != 1) {
        try {
          sum();
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("for rank 1"), std::string::npos)
              << error.what();
        }
      }
      uint64_t all_done = 1;
      over_host->all_reduce_sum(std::span(&all_done, 1));  // its memory goes last
    });
  }
}

// Long before the limit, by asking while it waits.
TEST(DeviceGroup, AnExchangeIsLeftAsSoonAsAPeerIsKnownToBeDead) {
  const gpu::WorkOnThreads on_threads;
  constexpr double kForEver = 10000;
  constexpr int kLooksUntilKnown = 20;
  for (const int num_ranks : {2, 4}) {
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      int num_looks = 0;
      bool is_gone = false;
      const auto group =
          make_exchange_group(*device,
                              backend(),
                              *over_host,
                              {.max_count = 64, .limit_s = kForEver, .check_alive = [&] {
                                 ++num_looks;
                                 if (is_gone && num_looks >= kLooksUntilKnown) {
                                   throw Error("rank 1 (host h, process 7) is gone");
                                 }
                               }});
      const gpu::Buffer values(*device, 64 * sizeof(float));
      const auto sum = [&] {
        group->all_reduce_sum(*stream, values.as<float>(), 64, Fold::kRankOrder);
        group->wait(*stream);
      };
      sum();
      num_looks = 0;
      is_gone = true;
      if (world.rank() != 1) {
        EXPECT_EQ(error_of(sum), "rank 1 (host h, process 7) is gone");
        EXPECT_EQ(num_looks, kLooksUntilKnown);
        // What is queued afterwards waits for nobody.
        EXPECT_EQ(error_of(sum), "rank 1 (host h, process 7) is gone");
      }
      meeting_of (*over_host)();  // its memory goes last
    });
  }
}

// A stream of a GPU that has failed.
class LostStream final : public gpu::Stream {
 public:
  void upload(void*, const void*, size_t) override { fail(); }
  void download(void*, const void*, size_t) override { fail(); }
  void copy(void*, const void*, size_t) override { fail(); }
  void fill(void*, uint8_t, size_t) override { fail(); }
  void wait() override { fail(); }
  bool is_done() override { fail(); }
  void wait_for(gpu::Stream&) override { fail(); }
  void begin_recording() override { fail(); }
  std::unique_ptr<gpu::Graph> end_recording() override { fail(); }
  void replay(gpu::Graph&) override { fail(); }

 private:
  [[noreturn]] static void fail() { throw Error("GPU 0: an illegal memory access"); }
};

// Memory of a rank that died may go while others write into it.
TEST(DeviceGroup, AnExchangesGpuThatFailsBecauseAPeerDiedNamesThePeer) {
  run_in_process(1, [&](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(1);
    bool is_gone = false;
    const auto check_alive = [&] {
      if (is_gone) throw Error("rank 1 (host h, process 7) is gone");
    };
    for (const bool can_ask : {false, true}) {
      ExchangeOptions options = {.max_count = 64};
      if (can_ask) options.check_alive = check_alive;
      const auto group = make_exchange_group(*device, backend(), *over_host, options);
      LostStream stream;
      is_gone = false;
      EXPECT_EQ(error_of([&] { group->wait(stream); }), "GPU 0: an illegal memory access");
      is_gone = true;
      EXPECT_EQ(error_of([&] { group->wait(stream); }),
                can_ask ? "rank 1 (host h, process 7) is gone" : "GPU 0: an illegal memory access");
    }
  });
}

// Of three and more, from so many bytes on: nothing but the time tells them apart.
TEST(DeviceGroup, LongSumsOfAnExchangeTakeTwoShots) {
  static const gpu::OpTable ops = backend().ops;
  static std::atomic<int> num_sums[2];  // in one shot, in two
  gpu::Backend counting = backend();
  counting.ops.exchange_sum = [](gpu::Stream& stream, const gpu::ExchangeSumArgs& args) {
    ++num_sums[args.kind.two_shot ? 1 : 0];
    ops.exchange_sum(stream, args);
  };
  for (const int num_ranks : {2, 3}) {
    num_sums[0] = num_sums[1] = 0;
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      const auto group = make_exchange_group(
          *device, counting, *over_host, {.max_count = 64, .two_shot_bytes = 160, .limit_s = 60});
      const gpu::Buffer values(*device, 64 * sizeof(float));
      meeting_of (*over_host)();
      for (const size_t count : {size_t{39}, size_t{40}, size_t{64}}) {
        group->all_reduce_sum(*stream, values.as<float>(), count, Fold::kRankOrder);
      }
      group->wait(*stream);
      meeting_of (*over_host)();  // its memory goes last
    });
    EXPECT_EQ(num_sums[0], num_ranks == 2 ? 6 : 3);
    EXPECT_EQ(num_sums[1], num_ranks == 2 ? 0 : 6);
  }
}

// Else its memory would never be free.
TEST(DeviceGroup, AnExchangeThatGoesEndsWhatItWaitsFor) {
  const gpu::WorkOnThreads on_threads;
  constexpr double kForEver = 10000;
  run_in_process(2, [&](World& world) {
    const auto device = backend().open(0);
    const auto stream = device->make_stream(gpu::Priority::kNormal);
    const auto over_host = world.make_target_group(2);
    auto group =
        make_exchange_group(*device, backend(), *over_host, {.max_count = 64, .limit_s = kForEver});
    const gpu::Buffer values(*device, 64 * sizeof(float));
    if (world.rank() == 0) {
      group->all_reduce_sum(*stream, values.as<float>(), 64, Fold::kRankOrder);
      group.reset();
      stream->wait();
    }
    meeting_of (*over_host)();  // the other's memory goes last
  });
}

TEST(DeviceGroup, AllMembersHearWhyThereIsNoExchange) {
  // One member's device has no memory left.
  run_in_process(3, [&](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(3);
    gpu::Backend without = backend();
    without.peers.share = [](gpu::Device&, void*) -> gpu::MemoryHandle {
      throw Error("GPU 3 cannot share memory with other processes");
    };
    try {
      make_exchange_group(
          *device, world.rank() == 1 ? without : backend(), *over_host, {.max_count = 8});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "the exchange between GPUs cannot be set up: rank 1: GPU 3 cannot share memory "
                   "with other processes");
    }
  });
}

}  // namespace
}  // namespace outrider::test
