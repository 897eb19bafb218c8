// The world as MPI processes: run under mpirun; every rank runs every test.
#include "runtime/comm/waiting.h"
#include "tests/comm/group_checks.h"

namespace outrider::test {
namespace {

World* world = nullptr;

// Ranks leave a test together: a message of the next test must not arrive in this one.
struct Mpi : ::testing::Test {
  void TearDown() override {
    const auto all = world->make_target_group(world->size());
    std::vector<uint64_t> nothing(1);
    all->all_reduce_sum(std::span<uint64_t>(nothing));
  }
};

TEST_F(Mpi, GroupOfAll) { check_group(*world->make_target_group(world->size())); }

TEST_F(Mpi, GroupWithoutTheLastRank) {
  const int num_targets = world->size() - 1;
  if (num_targets < 1) GTEST_SKIP() << "needs two ranks";
  // The last rank, where the draft would be, takes no part: no collective may contain it.
  if (world->rank() < num_targets) check_group(*world->make_target_group(num_targets));
}

TEST_F(Mpi, Mailboxes) { check_mailboxes(*world); }

TEST_F(Mpi, ALongQueueDrains) {
  const int to = (world->rank() + 1) % world->size();
  const int from = (world->rank() + world->size() - 1) % world->size();
  if (to == world->rank()) GTEST_SKIP() << "needs two ranks";
  for (int i = 0; i < 500; ++i) world->post(to, Bytes(1000, std::byte(i)));
  for (int i = 0; i < 500; ++i)
    ASSERT_EQ(receive(*world, from, world->size(), 30), Bytes(1000, std::byte(i)));
  Backoff backoff;
  while (world->num_unsent_bytes(to) > 0 && backoff.waited_s() < 30) backoff.pause();
  EXPECT_EQ(world->num_unsent_bytes(to), 0u);
}

}  // namespace
}  // namespace outrider::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto mpi_world = outrider::make_mpi_world(&argc, &argv);
  outrider::test::world = mpi_world.get();
  const int code = RUN_ALL_TESTS();
  mpi_world->finish(code);
  return code;
}
