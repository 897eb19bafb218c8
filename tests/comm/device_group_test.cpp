// Groups over device memory on one device, their members being threads; on a real GPU the
// exchange's launches of all of them must run at the same time.
#include "runtime/comm/device/device_group.h"

#include <atomic>
#include <chrono>

#include "runtime/comm/device/exchange_group.h"
#include "runtime/comm/world/world.h"
#include "runtime/ops/gpu/exchange.h"
#include "tests/base/error_sentence.h"
#include "tests/base/tries.h"
#include "tests/comm/device_group_checks.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/gpu/wrapped_device.h"

namespace outrider::test {
namespace {

// On the emulated device with more blocks at once than whole jobs take there.
const gpu::Backend& backend() {
  static const gpu::Backend made = [] {
    gpu::Backend of_test = gpu::test_backend();
    if (gpu::is_emulated()) of_test.peers.max_waiting_blocks = 3;
    return of_test;
  }();
  return made;
}

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
    std::vector<std::string> ends(static_cast<size_t>(num_ranks));
    const auto attempt = [&] {
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
        std::string& end = ends[static_cast<size_t>(world.rank())];
        end = error_of(sum);
        if (world.rank() != 1 && end == "no error") end = error_of(sum);
        meeting_of (*over_host)();  // its memory goes last
      });
      for (size_t r = 0; r < ends.size(); ++r) {
        if (r == 1 ? ends[r] != "no error" : ends[r].find("for rank 1") == std::string::npos)
          return false;
      }
      return true;
    };
    EXPECT_TRUE(in_one_of_three_tries(attempt)) << ::testing::PrintToString(ends);
  }
}

// Long before the limit, by asking while it waits.
TEST(DeviceGroup, AnExchangeIsLeftAsSoonAsAPeerIsKnownToBeDead) {
  const gpu::WorkOnThreads on_threads;
  constexpr double kLongS = 30;
  constexpr int kLooksUntilKnown = 20;
  for (const int num_ranks : {2, 4}) {
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      int num_looks = 0;
      bool is_gone = false;
      const auto group = make_exchange_group(
          *device, backend(), *over_host, {.max_count = 64, .limit_s = kLongS, .check_alive = [&] {
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

// What the rank of this thread gave its last launch.
thread_local gpu::ExchangeView last_view;
thread_local gpu::ExchangeKind last_kind;

gpu::Backend noting_backend() {
  static const gpu::OpTable ops = backend().ops;
  gpu::Backend noting = backend();
  noting.ops.exchange_sum = [](gpu::Stream& stream, const gpu::ExchangeSumArgs& args) {
    last_view = args.view;
    ops.exchange_sum(stream, args);
  };
  noting.ops.exchange_norm = [](gpu::Stream& stream, const gpu::ExchangeNormArgs& args) {
    last_view = args.view;
    last_kind = args.kind;
    ops.exchange_norm(stream, args);
  };
  return noting;
}

// Two shots leave sums in this rank's memory until the next round; one shot does not.
bool took_two_shots(gpu::Device& device, uint64_t round) {
  const auto size = static_cast<size_t>(last_view.size);
  const size_t slot = round % gpu::kNumExchangeBuffers * (size + 1) + size;
  gpu::Vector4 first;
  device.download_now(
      &first, last_view.memory[last_view.rank] + slot * last_view.slot_vectors, sizeof first);
  return first.x != gpu::kEmptyWord;
}

// Of three ranks and more, from so many bytes on.
TEST(DeviceGroup, LongSumsOfAnExchangeTakeTwoShots) {
  const gpu::Backend noting = noting_backend();
  for (const int num_ranks : {2, 3}) {
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(num_ranks);
      const auto group = make_exchange_group(
          *device, noting, *over_host, {.max_count = 1024, .two_shot_bytes = 2000, .limit_s = 60});
      const gpu::Buffer values(*device, 1024 * sizeof(float));
      const std::vector<float> ones(1024, 1.0f);
      device->upload_now(values.data(), ones.data(), 1024 * sizeof(float));
      uint64_t round = 0;
      for (const size_t count : {size_t{496}, size_t{500}, size_t{1024}}) {
        meeting_of (*over_host)();
        group->all_reduce_sum(*stream, values.as<float>(), count, Fold::kRankOrder);
        group->wait(*stream);
        EXPECT_EQ(took_two_shots(*device, round++), num_ranks > 2 && count >= 500) << count;
      }
      meeting_of (*over_host)();  // its memory goes last
    });
  }
}

// A graph is recorded for many rows and replayed for few.
TEST(DeviceGroup, TheRowsThatThereAreDecideHowManyShots) {
  constexpr int kRanks = 3;
  constexpr int32_t kN = 512;
  const gpu::Backend noting = noting_backend();
  run_in_process(kRanks, [&](World& world) {
    const auto device = backend().open(0);
    const auto stream = device->make_stream(gpu::Priority::kNormal);
    const auto over_host = world.make_target_group(kRanks);
    const auto group = make_exchange_group(
        *device,
        noting,
        *over_host,
        {.max_count = 4 * kN, .two_shot_bytes = 2 * kN * sizeof(float), .limit_s = 60});
    std::vector<bool> two_shots;
    uint64_t round = 0;
    bool is_after = false;  // a sum; the meeting before it otherwise
    const auto look_and_meet = [&] {
      if (is_after) two_shots.push_back(took_two_shots(*device, round++));
      is_after = !is_after;
      meeting_of (*over_host)();
    };
    check_sum_and_norm(*group, *device, backend().ops, *stream, 4, kN, expected_sum, look_and_meet);
    // 4, 2 and 1 rows, each time all of them and then one that was picked.
    EXPECT_EQ(two_shots, (std::vector<bool>{true, false, true, false, false, false}));
  });
}

TEST(DeviceGroup, WhatFollowsASumIsFetchedAsFarAsTheCacheHasRoom) {
  gpu::Backend without_launch = backend();
  without_launch.ops.exchange_norm = [](gpu::Stream&, const gpu::ExchangeNormArgs& args) {
    last_kind = args.kind;
  };
  run_in_process(1, [&](World& world) {
    const auto device = backend().open(0);
    const auto stream = device->make_stream(gpu::Priority::kNormal);
    const auto over_host = world.make_target_group(1);
    const auto group =
        make_exchange_group(*device, without_launch, *over_host, {.max_count = 64, .limit_s = 60});
    const auto fetched = [&](size_t num_bytes) {
      group->sum_and_norm(*stream,
                          {.norm = {.out = {.n = 64}, .max_rows = 1}, .next_bytes = num_bytes});
      return last_kind.next_bytes;
    };
    EXPECT_EQ(fetched(1000), 1000u);
    const size_t most = fetched(size_t{263} << 20);
    EXPECT_LE(most, size_t{16} << 20);
    EXPECT_LE(most, device->info().l2_bytes / 2);
    EXPECT_GT(most, 1000u);
  });
}

// A device that is asked whether all its work is done before memory goes.
class WaitedForDevice final : public WrappedDevice {
 public:
  WaitedForDevice() : WrappedDevice(backend().open(0)) {}
  void free(void* device) noexcept override {
    EXPECT_TRUE(has_waited);
    inner().free(device);
  }
  void free_pinned(void* pinned) noexcept override {
    EXPECT_TRUE(has_waited);
    inner().free_pinned(pinned);
  }
  void wait() noexcept override {
    inner().wait();
    has_waited = true;
  }
  bool has_waited = false;
};

// Else its memory would never be free, or would go while a launch looks at it.
TEST(DeviceGroup, AnExchangeThatGoesEndsWhatItWaitsFor) {
  const gpu::WorkOnThreads on_threads;
  constexpr double kLongS = 30;
  run_in_process(2, [&](World& world) {
    WaitedForDevice device;
    const auto stream = device.make_stream(gpu::Priority::kNormal);
    const auto over_host = world.make_target_group(2);
    auto group =
        make_exchange_group(device, backend(), *over_host, {.max_count = 64, .limit_s = kLongS});
    if (world.rank() == 0) {
      const gpu::Buffer values(device, 64 * sizeof(float));
      const auto begin = std::chrono::steady_clock::now();
      group->all_reduce_sum(*stream, values.as<float>(), 64, Fold::kRankOrder);
      group.reset();
      EXPECT_TRUE(stream->is_done());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), kLongS);
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
