// The exchange between GPUs of ranks that are processes, each with its own view of the device, all
// on GPU 0: their memory is known to each other by handles (CUDA's inter-process ones on a real
// device). Real processes, one of which really dies.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "runtime/comm/device/exchange_group.h"
#include "tests/base/tries.h"
#include "tests/comm/device_group_checks.h"
#include "tests/comm/processes.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::test {
namespace {

constexpr double kMostS = 100;

// A rank with its place in the group.
struct Member {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::Stream> stream;
  std::unique_ptr<TargetGroup> over_host;
  std::unique_ptr<DeviceGroup> group;

  Member(SocketWorld& world, const ExchangeOptions& options) {
    gpu::do_work_on_threads();
    device = gpu::test_backend().open(0);
    stream = device->make_stream(gpu::Priority::kNormal);
    over_host = world.make_target_group(world.size());
    group = make_exchange_group(*device, gpu::test_backend(), *over_host, options);
  }
};

void check_replays(Member& member, int num_replays) {
  DeviceGroup& group = *member.group;
  const gpu::Buffer values(*member.device, 50 * sizeof(float));
  member.stream->begin_recording();
  group.all_reduce_sum(*member.stream, values.as<float>(), 50, Fold::kTree);
  const auto graph = member.stream->end_recording();
  for (int i = 0; i < num_replays; ++i) {
    const unsigned draw = 1000u + static_cast<unsigned>(i);
    std::vector<float> host = values_of(group.rank(), draw, 50);
    member.device->upload_now(values.data(), host.data(), 50 * sizeof(float));
    member.stream->replay(*graph);
    group.wait(*member.stream);
    member.device->download_now(host.data(), values.data(), 50 * sizeof(float));
    EXPECT_EQ(first_difference(host, expected_sum(group.size(), draw, 50, Fold::kTree)), -1);
  }
}

struct Shape {
  int num_ranks = 2;
  size_t two_shot_bytes = 0;
};

class ExchangeProcesses : public ::testing::TestWithParam<Shape> {};

TEST_P(ExchangeProcesses, Sum) {
  const Shape shape = GetParam();
  const auto ended = run_in_processes(shape.num_ranks, kMostS, [&](SocketWorld& world) {
    Member member(world,
                  {.max_count = 4 * 72, .two_shot_bytes = shape.two_shot_bytes, .limit_s = kMostS});
    DeviceGroup& group = *member.group;
    EXPECT_EQ(group.name(), "exchange");
    const gpu::OpTable& ops = gpu::test_backend().ops;
    check_sums(group, *member.device, *member.stream, 650);  // in pieces
    for (const auto& [rows, n] : {std::pair(4, 72), std::pair(5, 72), std::pair(4, 70)}) {
      check_sum_and_norm(group, *member.device, ops, *member.stream, rows, n);
    }
    check_replays(member, 20);
    meeting_of (*member.over_host)();  // nobody's memory goes before the others are done with it
    return std::to_string(getpid());
  });
  expect_fine(ended);
  for (size_t r = 0; r < ended.size(); ++r) {  // they were processes indeed
    EXPECT_NE(ended[r].answer, std::to_string(getpid()));
    EXPECT_NE(ended[r].answer, ended[(r + 1) % ended.size()].answer);
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         ExchangeProcesses,
                         ::testing::Values(Shape{2, 1 << 30},
                                           Shape{3, 200},
                                           Shape{4, 1 << 30},  // a tree unlike rank order
                                           Shape{4, 200}),
                         [](const auto& test) {
                           return std::to_string(test.param.num_ranks) + "Ranks" +
                                  (test.param.two_shot_bytes < 1000 ? "InTwoShots" : "InOneShot");
                         });

// What a rank hears when it sums until that goes wrong, while rank 1 dies in the midst of sums.
std::string sums_until_error(SocketWorld& world, const ExchangeOptions& options) {
  Member member(world, options);
  if (world.rank() == 1) die_at_count(world, 20);
  const gpu::Buffer values(*member.device, 64 * sizeof(float));
  try {
    while (true) {
      const std::vector<float> ones(64, 1.0f);
      member.device->upload_now(values.data(), ones.data(), 64 * sizeof(float));
      member.group->all_reduce_sum(*member.stream, values.as<float>(), 64, Fold::kRankOrder);
      member.group->wait(*member.stream);
      if (world.rank() == 0) ++world.board().count;
    }
  } catch (const Error& error) {
    return error.what();
  }
}

void expect_killed(const EndedRank& rank) {
  EXPECT_EQ(rank.signal, SIGKILL) << rank.output;
  EXPECT_FALSE(rank.is_late);
}

// Long before the limit of a wait, which says something else.
TEST(DyingProcess, IsNamedAtOnceByTheHost) {
  const auto ended = run_in_processes(3, kMostS, [&](SocketWorld& world) {
    const std::string error = sums_until_error(
        world, {.max_count = 64, .limit_s = 30, .check_alive = [&] { world.check_alive(3); }});
    EXPECT_EQ(error,
              "rank 1 (process " + std::to_string(world.board().pids[1].load()) + ") is gone");
    return error;
  });
  ASSERT_EQ(ended.size(), 3u);
  expect_fine({ended[0], ended[2]});
  expect_killed(ended[1]);
  for (const int r : {0, 2}) {
    std::printf("rank %d ended %.0f ms after rank 1 had died\n",
                r,
                1000 * (ended[static_cast<size_t>(r)].ended_s - ended[1].ended_s));
  }
}

// Nobody says who is dead, as where hosts differ: the limit of the wait ends it.
TEST(DyingProcess, IsNamedByTheExchangeAfterItsLimit) {
  std::vector<EndedRank> ended;
  in_one_of_three_tries([&] {
    ended = run_in_processes(2, kMostS, [&](SocketWorld& world) {
      return sums_until_error(world, {.max_count = 64, .limit_s = 2});
    });
    // Else a sum was given up before rank 1 died.
    return ended.size() == 2 && ended[1].signal == SIGKILL;
  });
  ASSERT_EQ(ended.size(), 2u);
  expect_fine({ended[0]});
  expect_killed(ended[1]);
  EXPECT_EQ(ended[0].answer, "the exchange between GPUs broke off: rank 0 waited 2 s for rank 1");
}

}  // namespace
}  // namespace outrider::test
