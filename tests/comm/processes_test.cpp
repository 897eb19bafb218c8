// Ranks as processes, as other tests use them: messages, sums over shared memory, and that a rank
// that dies, fails or hangs is seen for what it is.
#include "tests/comm/processes.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <thread>

#include "runtime/base/error.h"

namespace outrider::test {
namespace {

constexpr double kMostS = 60;

Bytes bytes_of(size_t count, int seed) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<size_t>(seed));
  }
  return bytes;
}

TEST(Processes, ExchangeMessages) {
  const auto ended = run_in_processes(3, kMostS, [](SocketWorld& world) {
    // More than a socket holds, to everyone before anyone takes it; itself included.
    for (int to = 0; to < 3; ++to) {
      world.post(to, bytes_of(3000000, world.rank() * 3 + to));
      world.post(to, bytes_of(5, world.rank()));
      world.post(to, {});
    }
    for (int from = 0; from < 3; ++from) {
      EXPECT_TRUE(receive(world, from, 3, kMostS) == bytes_of(3000000, from * 3 + world.rank()));
      EXPECT_TRUE(receive(world, from, 3, kMostS) == bytes_of(5, from));
      EXPECT_EQ(receive(world, from, 3, kMostS).size(), 0u);
      EXPECT_FALSE(world.poll(from).has_value());
    }
    return "rank " + std::to_string(world.rank());
  });
  ASSERT_EQ(ended.size(), 3u);
  expect_fine(ended);
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(ended[r].answer, "rank " + std::to_string(r));
}

TEST(Processes, Sum) {
  const auto ended = run_in_processes(3, kMostS, [](SocketWorld& world) {
    if (world.rank() < 2) {  // a group of some
      const auto two = world.make_target_group(2);
      std::array<uint64_t, 2> values = {1u + static_cast<uint64_t>(world.rank()), 10};
      two->all_reduce_sum(values);
      EXPECT_EQ(values[0], 3u);
      EXPECT_EQ(values[1], 20u);
    }
    const auto all = world.make_target_group(3);
    float value = 0.5f + static_cast<float>(world.rank());
    for (int i = 0; i < 10; ++i) all->all_reduce_sum(std::span(&value, 1), Fold::kRankOrder);
    return std::to_string(value);
  });
  ASSERT_EQ(ended.size(), 3u);
  expect_fine(ended);
  float expected = 4.5f;
  for (int i = 1; i < 10; ++i) expected += expected + expected;
  for (const EndedRank& rank : ended) EXPECT_EQ(rank.answer, std::to_string(expected));
}

TEST(Processes, ADeadRankIsNamedToWhoWaits) {
  const auto ended = run_in_processes(3, kMostS, [](SocketWorld& world) -> std::string {
    const auto group = world.make_target_group(3);
    uint64_t value = 1;
    if (world.rank() == 1) raise(SIGKILL);
    try {
      if (world.rank() == 0) {
        group->all_reduce_sum(std::span(&value, 1));
      } else {
        receive(world, 1, 3);
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  });
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(ended[1].signal, SIGKILL);
  expect_fine({ended[0], ended[2]});
  for (const size_t r : {0, 2}) {
    EXPECT_EQ(ended[r].answer.substr(0, 16), "rank 1 (process ");
    EXPECT_EQ(ended[r].answer, ended[0].answer);
  }
}

TEST(Processes, ARankThatIsDoneIsNotDead) {
  const auto ended = run_in_processes(3, kMostS, [](SocketWorld& world) -> std::string {
    if (world.rank() == 1) return "done";
    if (world.rank() == 0) {
      const auto pid = [&] { return world.board().pids[1].load(); };
      while (pid() == 0 || kill(pid(), 0) == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      world.check_alive(3);
      world.post(2, bytes_of(10, 0));
    } else {
      EXPECT_TRUE(receive(world, 0, 3) == bytes_of(10, 0));
    }
    return "done";
  });
  expect_fine(ended);
}

TEST(Processes, AnAbortEndsAll) {
  const auto ended = run_in_processes(3, kMostS, [](SocketWorld& world) -> std::string {
    if (world.rank() == 2) world.abort("no more");
    try {
      receive(world, 1 - world.rank(), 2);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  });
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(ended[2].exit_code, 70);
  EXPECT_NE(ended[2].output.find("no more"), std::string::npos) << ended[2].output;
  for (const size_t r : {0, 1}) EXPECT_EQ(ended[r].answer, "rank 2 ended the job: no more");
}

TEST(Processes, WhatGoesWrongIsSeen) {
  const auto ended = run_in_processes(3, kMostS, [](SocketWorld& world) -> std::string {
    if (world.rank() == 0) throw Error("a sentence");
    if (world.rank() == 1) ADD_FAILURE() << "a failed check";
    return "an answer";
  });
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(ended[0].exit_code, 1);
  EXPECT_EQ(ended[0].error, "a sentence");
  EXPECT_EQ(ended[1].exit_code, 2);
  EXPECT_NE(ended[1].output.find("a failed check"), std::string::npos) << ended[1].output;
  EXPECT_EQ(ended[2].exit_code, 0);
  EXPECT_EQ(ended[2].answer, "an answer");
}

TEST(Processes, WhoHangsIsEnded) {
  const auto ended = run_in_processes(1, 0.5, [](SocketWorld&) -> std::string {
    std::this_thread::sleep_for(std::chrono::seconds(1000));
    return "an answer";
  });
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].signal, SIGKILL);
  EXPECT_TRUE(ended[0].is_late);
  EXPECT_EQ(ended[0].answer, "");
}

}  // namespace
}  // namespace outrider::test
