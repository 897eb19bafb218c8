// Groups of several hosts with several GPUs each, on the emulated device, their members being
// threads that say which host they are on. Between hosts through the host's memory, or by a second
// exchange, which can be recorded; hierarchical_nccl_test has NCCL between them.
#include "runtime/comm/device/hierarchical_group.h"

#include <algorithm>
#include <utility>

#include "runtime/comm/group/subgroup.h"
#include "runtime/comm/world/world.h"
#include "tests/base/error_sentence.h"
#include "tests/base/tries.h"
#include "tests/comm/hierarchical_checks.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::test {
namespace {

const gpu::Backend& backend() { return gpu::test_backend(); }

struct Shape {
  int num_hosts;
  int ranks_per_host;
  int num_ranks() const { return num_hosts * ranks_per_host; }
};
constexpr Shape kShapes[] = {{2, 2}, {2, 4}, {3, 2}, {2, 3}, {4, 2}};
constexpr size_t kAllInShares = 0;
constexpr size_t kNoneInShares = size_t{1} << 30;

HierarchicalOptions options_of(const Shape& shape, int rank, size_t share_bytes) {
  return {.within = {.max_count = 4 * 72, .limit_s = 60},
          .between = {.max_count = 4 * 72, .limit_s = 80},
          .between_through_host = true,
          .share_bytes = share_bytes,
          .host = rank / shape.ranks_per_host};
}

// An exchange within hosts and one between them, which no machine has.
std::unique_ptr<DeviceGroup> make_two_exchanges(gpu::Device& device,
                                                TargetGroup& over_host,
                                                const Shape& shape,
                                                size_t share_bytes,
                                                double limit_s) {
  const HostGrid grid = find_host_grid(over_host, over_host.rank() / shape.ranks_per_host);
  const int first = grid.host * grid.ranks_per_host;
  Subgroup here(over_host, first, 1, grid.ranks_per_host);
  Subgroup others(over_host, grid.place, grid.ranks_per_host, grid.num_hosts);
  const auto made = [&](Subgroup& ranks, int first_rank) {
    return make_exchange_group(
        device,
        backend(),
        ranks,
        {.max_count = 4 * 72, .two_shot_bytes = 200, .limit_s = limit_s, .first_rank = first_rank});
  };
  auto within = made(here, first);
  auto between = made(others, 100);
  return join_device_groups(
      backend().ops, grid, std::move(within), std::move(between), share_bytes);
}

TEST(HierarchicalGroup, SumsAndNorms) {
  const std::pair<Shape, size_t> cases[] = {{{2, 2}, kAllInShares},
                                            {{2, 2}, 1000},
                                            {{2, 4}, kAllInShares},
                                            {{3, 2}, 1000},
                                            {{2, 3}, kAllInShares},
                                            {{4, 2}, kNoneInShares}};
  for (const auto& [of_case, share_bytes] : cases) {
    const Shape shape = of_case;
    run_in_process(shape.num_ranks(), [&, share_bytes = share_bytes](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(world.size());
      const auto group = make_hierarchical_group(
          *device, backend(), *over_host, options_of(shape, world.rank(), share_bytes));
      EXPECT_EQ(group->rank(), world.rank());
      EXPECT_EQ(group->size(), world.size());
      EXPECT_FALSE(group->is_capturable());
      const ExpectedSum expected = sum_by_hosts(shape.ranks_per_host);
      const auto meet = meeting_of(*over_host);
      check_sums(*group, *device, *stream, 336, expected, meet);  // in pieces
      check_sum_and_norm(*group, *device, backend().ops, *stream, 4, 72, expected, meet);
      check_sum_and_norm(*group, *device, backend().ops, *stream, 3, 70, expected, meet);
    });
  }
}

TEST(HierarchicalGroup, ATreeOverPowersOfTwoIsThatOfAFlatGroup) {
  for (const Shape& shape : kShapes) {
    const bool is_same =
        sum_by_hosts(shape.ranks_per_host)(shape.num_ranks(), 3, 500, Fold::kTree) ==
        expected_sum(shape.num_ranks(), 3, 500, Fold::kTree);
    EXPECT_EQ(is_same, shape.ranks_per_host != 3) << shape.ranks_per_host;
    // That the order shows in these values at all.
    EXPECT_NE(sum_by_hosts(shape.ranks_per_host)(shape.num_ranks(), 3, 500, Fold::kRankOrder),
              expected_sum(shape.num_ranks(), 3, 500, Fold::kRankOrder));
  }
}

TEST(HierarchicalGroup, IsReplayedWhereBothPartsAre) {
  constexpr Shape kShape = {2, 2};
  constexpr size_t kCount = 64;
  for (const size_t share_bytes : {kAllInShares, kNoneInShares}) {
    run_in_process(kShape.num_ranks(), [&](World& world) {
      const auto device = backend().open(0);
      const auto stream = device->make_stream(gpu::Priority::kNormal);
      const auto over_host = world.make_target_group(world.size());
      const auto group = make_two_exchanges(*device, *over_host, kShape, share_bytes, 60);
      EXPECT_EQ(group->name(), "2 x 2: exchange within a host, exchange between");
      ASSERT_TRUE(group->is_capturable());
      const gpu::Buffer values(*device, kCount * sizeof(float));
      stream->begin_recording();
      group->all_reduce_sum(*stream, values.as<float>(), kCount, Fold::kTree);
      const auto graph = stream->end_recording();
      meeting_of (*over_host)();
      for (unsigned draw = 0; draw < 20; ++draw) {
        std::vector<float> host = values_of(world.rank(), draw, kCount);
        device->upload_now(values.data(), host.data(), kCount * sizeof(float));
        stream->replay(*graph);
        group->wait(*stream);
        device->download_now(host.data(), values.data(), kCount * sizeof(float));
        EXPECT_EQ(first_difference(host, expected_sum(world.size(), draw, kCount, Fold::kTree)),
                  -1);
      }
    });
  }
}

// Sums until an error, which it returns; the dead rank stops after the third.
std::string sums_until_error(DeviceGroup& group,
                             gpu::Device& device,
                             gpu::Stream& stream,
                             bool dies) {
  const gpu::Buffer values(device, 64 * sizeof(float));
  try {
    for (int i = 0; i < 20; ++i) {
      if (dies && i == 3) return "dead";
      group.all_reduce_sum(stream, values.as<float>(), 64, Fold::kRankOrder);
      group.wait(stream);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HierarchicalGroup, AllLeaveADeadRankAndItsHostNamesIt) {
  constexpr Shape kShape = {2, 2};
  const std::pair<int, size_t> cases[] = {{0, kAllInShares}, {3, kNoneInShares}};
  for (const auto& [dead, share_bytes] : cases) {
    const int neighbour = dead ^ 1;
    const std::string expected = "the exchange between GPUs broke off: rank " +
                                 std::to_string(neighbour) + " waited 1.5 s for rank " +
                                 std::to_string(dead);
    std::vector<std::string> ends(4);
    EXPECT_TRUE(in_one_of_three_tries([&, share_bytes = share_bytes, dead = dead] {
      run_in_process(kShape.num_ranks(), [&](World& world) {
        const auto device = backend().open(0);
        const auto stream = device->make_stream(gpu::Priority::kNormal);
        const auto over_host = world.make_target_group(world.size());
        const auto group = make_two_exchanges(*device, *over_host, kShape, share_bytes, 1.5);
        ends[static_cast<size_t>(world.rank())] =
            sums_until_error(*group, *device, *stream, world.rank() == dead);
        uint64_t all_done = 1;
        over_host->all_reduce_sum(std::span(&all_done, 1));  // its memory goes last
      });
      return std::count(ends.begin(), ends.end(), "") == 0 &&
             ends[static_cast<size_t>(neighbour)] == expected;
    })) << ::testing::PrintToString(ends);
  }
}

TEST(HierarchicalGroup, ThroughTheHostADeadRankEndsTheJob) {
  constexpr Shape kShape = {2, 2};
  std::vector<std::string> ends(4);
  const auto run = [&](World& world) {
    const auto device = backend().open(0);
    const auto stream = device->make_stream(gpu::Priority::kNormal);
    const auto over_host = world.make_target_group(world.size());
    HierarchicalOptions options = options_of(kShape, world.rank(), kNoneInShares);
    options.within.limit_s = 1.5;
    const auto group = make_hierarchical_group(*device, backend(), *over_host, options);
    std::string& end = ends[static_cast<size_t>(world.rank())];
    end = sums_until_error(*group, *device, *stream, world.rank() == 3);
    if (world.rank() != 3) throw Error(end);
    // The memory of the dead goes last.
    Backoff backoff;
    try {
      while (true) {
        world.check_alive(4);
        world.pause(backoff);
      }
    } catch (const Error&) {
    }
  };
  // Rank 1 waits on the host for the dead one, and rank 0 for it as long as rank 2 for rank 3: who
  // is first to say so speaks for all, unless both are in the same moment.
  const std::string of_first = "the exchange between GPUs broke off: rank ";
  EXPECT_TRUE(in_one_of_three_tries([&] {
    const bool has_failed = error_of([&] { run_in_process(4, run); }) != "no error";
    return has_failed &&
           (ends[0] == of_first + "2 waited 1.5 s for rank 3" ||
            ends[0] == of_first + "0 waited 1.5 s for rank 1") &&
           ends[1] == ends[0] && ends[2] == ends[0];
  })) << ::testing::PrintToString(ends);
}

// By rank, on which host; every member's error.
std::vector<std::string> errors_on(const std::vector<int>& hosts, const gpu::Backend& of_rank_1) {
  std::vector<std::string> found(hosts.size());
  run_in_process(static_cast<int>(hosts.size()), [&](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(world.size());
    const auto r = static_cast<size_t>(world.rank());
    HierarchicalOptions options = options_of({2, 2}, world.rank(), 0);
    options.host = hosts[r];
    try {
      make_hierarchical_group(*device, r == 1 ? of_rank_1 : backend(), *over_host, options);
    } catch (const Error& error) {
      found[r] = error.what();
    }
    uint64_t all_done = 1;
    over_host->all_reduce_sum(std::span(&all_done, 1));
  });
  return found;
}

TEST(HierarchicalGroup, WhatDoesNotFitIsOneSentenceForAll) {
  const auto expect = [](const std::vector<int>& hosts, const std::string& error) {
    EXPECT_EQ(errors_on(hosts, backend()), std::vector<std::string>(hosts.size(), error));
  };
  const std::string uneven =
      "sums cannot go by hosts: every host must have equally many of the target's ranks, next to "
      "each other; by the "
      "first rank of their host they are";
  expect({0, 0, 1}, uneven + " 0 0 2");
  expect({0, 1, 1}, uneven + " 0 1 1");
  expect({0, 1, 0, 1}, uneven + " 0 1 0 1");
  expect({0, 0, 1, 1, 0, 0}, uneven + " 0 0 2 2 0 0");
  expect({0, 0, 1, 2}, uneven + " 0 0 2 3");
  expect({5, 5, 5}, "the target's ranks are on one host: there are no others to join by NCCL");
  expect({-1, -1}, "the target's ranks are on one host: there are no others to join by NCCL");
  expect({0, 1, 2},
         "every host has one of the target's ranks: there is nothing to exchange within a host");
  expect({7, 7, 2, 2}, "");
}

TEST(HierarchicalGroup, AHostThatCannotExchangeEndsTheSetUpOfAll) {
  gpu::Backend without = backend();
  without.peers.share = [](gpu::Device&, void*) -> gpu::MemoryHandle {
    throw Error("GPU 3 cannot share memory with other processes");
  };
  for (const std::string& error : errors_on({0, 0, 1, 1}, without)) {
    EXPECT_EQ(error,
              "the exchange between GPUs cannot be set up: rank 1: GPU 3 cannot share memory with "
              "other processes");
  }
}

}  // namespace
}  // namespace outrider::test
