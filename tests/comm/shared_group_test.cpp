// The group over mapped memory, its members being threads here, and what it does without memory.
#include "runtime/comm/group/shared_group.h"

#include <sys/resource.h>

#include <cstdlib>

#include "tests/comm/group_checks.h"

namespace outrider::test {
namespace {

// Counts what goes through it.
class CountedGroup final : public TargetGroup {
 public:
  CountedGroup(std::unique_ptr<TargetGroup> group, int* count)
      : group_(std::move(group)), count_(count) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_reduce_sum(std::span<float> values, Fold fold) override {
    ++*count_;
    group_->all_reduce_sum(values, fold);
  }
  void all_reduce_sum(std::span<uint64_t> values) override {
    ++*count_;
    group_->all_reduce_sum(values);
  }
  void all_reduce_max(std::span<uint64_t> values) override {
    ++*count_;
    group_->all_reduce_max(values);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    ++*count_;
    group_->all_gather(mine, all);
  }

 private:
  std::unique_ptr<TargetGroup> group_;
  int* count_;
};

// How many exchanges of each member went over messages.
std::vector<int> check_shared(int num_members) {
  std::vector<int> counts(static_cast<size_t>(num_members));
  run_in_process(num_members, [&](World& world) {
    auto over_messages = std::make_unique<CountedGroup>(world.make_target_group(num_members),
                                                        &counts[static_cast<size_t>(world.rank())]);
    const GroupWaits waits = {.hot_time = std::chrono::microseconds(10),
                              .check_alive = [&] { world.check_alive(num_members); }};
    check_group(*make_shared_group(std::move(over_messages), waits));
  });
  return counts;
}

TEST(SharedGroup, OnlyItsBeginningNeedsMessages) {
  for (const int size : {2, 3, 5}) {
    for (const int count : check_shared(size)) EXPECT_EQ(count, 2);
  }
}

TEST(SharedGroup, WithoutMemoryAllMembersStayWithMessages) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);  // nobody can make or open the file
  const std::vector<int> counts = check_shared(3);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (const int count : counts) EXPECT_GT(count, 300);
}

TEST(SharedGroup, OpenMpisTransportsAreHeeded) {
  const auto allowed = [](const char* transports) {
    setenv("OMPI_MCA_btl", transports, 1);
    const bool may = may_share_memory();
    unsetenv("OMPI_MCA_btl");
    return may;
  };
  EXPECT_TRUE(may_share_memory());
  EXPECT_TRUE(allowed("self,vader"));
  EXPECT_TRUE(allowed("sm,self"));
  EXPECT_TRUE(allowed("self,sm"));
  EXPECT_TRUE(allowed("^openib"));
  EXPECT_FALSE(allowed("tcp,self"));
  EXPECT_FALSE(allowed("^vader,openib"));
  EXPECT_FALSE(allowed("^sm"));
}

}  // namespace
}  // namespace outrider::test
