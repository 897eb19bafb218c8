// Some members of a group as a group of their own, all subgroups at the same time.
#include "runtime/comm/group/subgroup.h"

#include <array>

#include "runtime/comm/group/agreed_setup.h"
#include "tests/comm/group_checks.h"

namespace outrider::test {
namespace {

TEST(Subgroup, IsAGroupLikeAnyOther) {
  for (const int size : {3, 4}) {  // in groups of four the tree is not rank order
    run_in_process(2 * size, [&](World& world) {
      const auto whole = world.make_target_group(world.size());
      Subgroup neighbours(*whole, world.rank() / size * size, 1, size);
      check_group(neighbours);
      Subgroup every_second(*whole, world.rank() % 2, 2, size);
      check_group(every_second);
      // The members are those that were asked for.
      std::array<uint64_t, 1> rank = {static_cast<uint64_t>(world.rank())};
      every_second.all_reduce_sum(rank);
      const int odd = world.rank() % 2;
      EXPECT_EQ(rank[0], static_cast<uint64_t>(size * (size - 1) + odd * size));
    });
  }
}

// What a member of the pairs (0, 1), (2, 3) hears when `step` is done in each.
std::vector<std::string> errors_of(const std::function<void(Subgroup&, int rank)>& step) {
  std::vector<std::string> found(4);
  run_in_process(4, [&](World& world) {
    const auto whole = world.make_target_group(4);
    Subgroup pair(*whole, world.rank() / 2 * 2, 1, 2);
    try {
      pair.set_up([&] { step(pair, world.rank()); });
    } catch (const Error& error) {
      found[static_cast<size_t>(world.rank())] = error.what();
    }
    // Whatever went wrong, all have left at the same verb.
    EXPECT_EQ(gather_values(*whole, world.rank()), (std::vector<int>{0, 1, 2, 3}));
  });
  return found;
}

TEST(Subgroup, AProblemInOneEndsAllWhereverTheyAre) {
  const auto step = [](Subgroup& pair, int failing, int rank) {
    set_up_together(pair, "first", [&] {
      if (rank == failing) throw Error("no memory");
    });
    gather_values(pair, std::array<int, 7>{});
    set_up_together(pair, "second", [] {});
  };
  for (int failing = 0; failing < 4; ++failing) {
    const auto found = errors_of([&](Subgroup& pair, int rank) { step(pair, failing, rank); });
    for (const std::string& error : found) {
      EXPECT_EQ(error, "first: rank " + std::to_string(failing % 2) + ": no memory");
    }
  }
  for (const std::string& error : errors_of([&](Subgroup&pair, int r) { step(pair, -1, r); })) {
    EXPECT_EQ(error, "");
  }
}

TEST(Subgroup, AProblemAfterTheLastVerbEndsAll) {
  const auto found = errors_of([](Subgroup& pair, int rank) {
    gather_values(pair, rank);
    if (rank == 3) throw Error("late");
  });
  for (const std::string& error : found) EXPECT_EQ(error, "late");
}

}  // namespace
}  // namespace outrider::test
