// The exchange between GPUs of ranks that are processes, each with its own view of the device, all
// on GPU 0: their memory is known to each other by handles (CUDA's inter-process ones on a real
// device). Real processes, one of which really dies.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "runtime/comm/device/exchange_group.h"
#include "tests/base/tries.h"
#include "tests/gpu/process_member.h"

namespace outrider::test {
namespace {

constexpr double kMostS = 100;

ProcessMember member_of(SocketWorld& world, const ExchangeOptions& options) {
  gpu::do_work_on_threads();
  ProcessMember member(world);
  member.group =
      make_exchange_group(*member.device, gpu::test_backend(), *member.over_host, options);
  return member;
}

struct Shape {
  int num_ranks = 2;
  size_t two_shot_bytes = 0;
};

class ExchangeProcesses : public ::testing::TestWithParam<Shape> {};

TEST_P(ExchangeProcesses, Sum) {
  const Shape shape = GetParam();
  const auto ended = run_in_processes(shape.num_ranks, kMostS, [&](SocketWorld& world) {
    ProcessMember member = member_of(
        world, {.max_count = 4 * 72, .two_shot_bytes = shape.two_shot_bytes, .limit_s = kMostS});
    DeviceGroup& group = *member.group;
    EXPECT_EQ(group.name(), "exchange");
    const gpu::OpTable& ops = gpu::test_backend().ops;
    check_sums(group, *member.device, *member.stream, 650);  // in pieces
    for (const auto& [rows, n] : {std::pair(4, 72), std::pair(5, 72), std::pair(4, 70)}) {
      check_sum_and_norm(group, *member.device, ops, *member.stream, rows, n);
    }
    check_replays(member, 50, 20);
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

// Long before the limit of a wait, which says something else.
TEST(DyingProcess, IsNamedAtOnceByTheHost) {
  const auto ended = run_in_processes(3, kMostS, [&](SocketWorld& world) {
    ProcessMember member = member_of(
        world, {.max_count = 64, .limit_s = 30, .check_alive = [&] { world.check_alive(3); }});
    const std::string error = sums_until_error(world, member, Fold::kRankOrder);
    EXPECT_EQ(error,
              "rank 1 (process " + std::to_string(world.board().pids[1].load()) + ") is gone");
    return error;
  });
  ASSERT_EQ(ended.size(), 3u);
  expect_fine({ended[0], ended[2]});
  expect_killed(ended);
}

// Nobody says who is dead, as where hosts differ: the limit of the wait ends it.
TEST(DyingProcess, IsNamedByTheExchangeAfterItsLimit) {
  std::vector<EndedRank> ended;
  in_one_of_three_tries([&] {
    ended = run_in_processes(2, kMostS, [&](SocketWorld& world) {
      ProcessMember member = member_of(world, {.max_count = 64, .limit_s = 2});
      return sums_until_error(world, member, Fold::kRankOrder);
    });
    // Else a sum was given up before rank 1 died.
    return ended.size() == 2 && ended[1].signal == SIGKILL;
  });
  ASSERT_EQ(ended.size(), 2u);
  expect_fine({ended[0]});
  expect_killed(ended);
  EXPECT_EQ(ended[0].answer, "the exchange between GPUs broke off: rank 0 waited 2 s for rank 1");
}

}  // namespace
}  // namespace outrider::test
