// The exchanges that `bench comm` times: right over threads at every size, and told wrong when
// somebody changes a bit on the way.
#include "runtime/commands/bench/comm/comm_cases.h"

#include <gtest/gtest.h>

#include <set>

namespace outrider::test {
namespace {

CommSizes small_sizes(Fold fold) {
  return {.hidden_dim = 48,
          .vocab_size = 1000,
          .rows = {1, 5},
          .num_seqs = {1, 3},
          .draft_len = 7,
          .num_candidates = 16,
          .fold = fold};
}

// Rank 0's results differ from what they should be, once, in one bit.
class SpoiltGroup final : public TargetGroup {
 public:
  explicit SpoiltGroup(std::unique_ptr<TargetGroup> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_reduce_sum(std::span<float> values, Fold fold) override {
    group_->all_reduce_sum(values, fold);
    spoil(std::as_writable_bytes(values));
  }
  void all_reduce_sum(std::span<uint64_t> values) override {
    group_->all_reduce_sum(values);
    spoil(std::as_writable_bytes(values));
  }
  void all_reduce_max(std::span<uint64_t> values) override {
    group_->all_reduce_max(values);
    spoil(std::as_writable_bytes(values));
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    group_->all_gather(mine, all);
    spoil(all);
  }

 private:
  void spoil(std::span<std::byte> bytes) {
    if (rank() == 0) bytes.back() ^= std::byte{1};
  }
  std::unique_ptr<TargetGroup> group_;
};

TEST(CommCases, NothingIsWrongOverThreads) {
  for (const int num_ranks : {2, 3, 5}) {
    for (const Fold fold : {Fold::kRankOrder, Fold::kTree}) {
      run_in_process(num_ranks, [&](World& world) {
        const auto group = world.make_target_group(num_ranks);
        for (const CommCase& one : comm_cases(world, *group, small_sizes(fold))) {
          one.run();
          for (uint64_t turn = 1; turn <= 3; ++turn) {
            EXPECT_EQ(one.num_wrong(turn), 0u) << one.message;
            one.run();
          }
        }
      });
    }
  }
}

TEST(CommCases, AChangedBitIsFound) {
  run_in_process(3, [&](World& world) {
    SpoiltGroup group(world.make_target_group(3));
    for (const CommCase& one : comm_cases(world, group, small_sizes(Fold::kTree))) {
      const bool is_collective =
          one.message.starts_with("partial") || one.message.starts_with("sampling");
      const uint64_t expected = is_collective && world.rank() == 0 ? 1 : 0;
      EXPECT_EQ(one.num_wrong(1), expected) << one.message;
    }
  });
}

// One rank thinks another turn: what it gives is not what the others expect of it. Few maxima may
// agree by chance.
TEST(CommCases, ContentsOfAnotherTurnAreFound) {
  run_in_process(2, [&](World& world) {
    const auto group = world.make_target_group(2);
    const auto turn = static_cast<uint64_t>(7 + world.rank());
    for (const CommCase& one : comm_cases(world, *group, small_sizes(Fold::kRankOrder))) {
      const uint64_t count = one.num_wrong(turn);
      if (one.count >= 8) {
        EXPECT_GT(count, 0u) << one.message;
      }
    }
  });
}

// The bytes of the table in docs/round.md, at draft length 7.
TEST(CommCases, SizesAreTheRounds) {
  run_in_process(2, [](World& world) {
    const auto group = world.make_target_group(2);
    std::set<std::pair<std::string, size_t>> found;
    for (const CommCase& one : comm_cases(world, *group, small_sizes(Fold::kTree))) {
      if (one.x == 1) found.insert({one.message, one.num_bytes});
    }
    const auto has = [&](const char* message, size_t num_bytes) {
      return found.contains({message, num_bytes});
    };
    EXPECT_TRUE(has("partial sums", 4 * 48));
    EXPECT_TRUE(has("sampling: row maxima", 64));
    EXPECT_TRUE(has("sampling: masses, standard", 112));
    EXPECT_TRUE(has("sampling: masses, block", 504));
    EXPECT_TRUE(has("sampling: corrections", 8));
    EXPECT_TRUE(has("sampling: top-p", 2 * 8 * 268));
  });
}

}  // namespace
}  // namespace outrider::test
