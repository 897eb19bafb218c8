// The world as threads, and what happens when one of them fails.
#include <atomic>
#include <thread>

#include "tests/comm/group_checks.h"

namespace outrider::test {
namespace {

TEST(InProcess, GroupsOfAllSizes) {
  for (int size : {1, 2, 3, 4, 8}) {
    run_in_process(size, [&](World& world) { check_group(*world.make_target_group(size)); });
  }
}

TEST(InProcess, Mailboxes) {
  run_in_process(3, [](World& world) { check_mailboxes(world); });
}

TEST(InProcess, UnsentBytesAreCounted) {
  std::atomic<bool> taken_allowed{false};
  run_in_process(2, [&](World& world) {
    if (world.rank() == 0) {
      world.post(1, Bytes(1000));
      EXPECT_EQ(world.num_unsent_bytes(1), 1000u);
      taken_allowed = true;
      receive(world, 1, 2, 30);  // the other has taken it
      EXPECT_EQ(world.num_unsent_bytes(1), 0u);
    } else {
      // The message is taken only when its bytes were counted.
      while (!taken_allowed) std::this_thread::yield();
      receive(world, 0, 2, 30);
      world.post(0, Bytes(1));
    }
  });
}

TEST(InProcess, AFailingRankEndsTheOthersWaits) {
  std::atomic<int> num_ended{0};
  try {
    run_in_process(3, [&](World& world) {
      const auto group = world.make_target_group(3);
      if (world.rank() == 2) throw Error("rank 2 has had enough");
      try {
        std::vector<float> values(10);
        while (true) group->all_reduce_sum(std::span<float>(values), Fold::kRankOrder);
      } catch (const Error&) {
        ++num_ended;
        throw;
      }
    });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 2 has had enough");
  }
  EXPECT_EQ(num_ended, 2);
}

TEST(InProcess, ReceiveGivesUpInTime) {
  EXPECT_THROW(run_in_process(2,
                              [](World& world) {
                                if (world.rank() == 0) receive(world, 1, 2, 0.05);
                              }),
               Error);
}

}  // namespace
}  // namespace outrider::test
