// Waiting for a step's end: a device that never comes to it costs the group's time limit, not more,
// and the thread is free for other things only where it is known how long a step takes.
#include "models/gpu/step_wait.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/base/error_sentence.h"
#include "tests/comm/stuck_stream.h"

namespace outrider::test {
namespace {

constexpr auto kStep = std::chrono::milliseconds(20);
constexpr LaunchSizes kSizes = {.rows = 5, .logit_rows = 5, .items = 1, .splits = 1};

// The device's time passes in wait(), unless it is dead: then the group gives up.
class LimitedGroup final : public DeviceGroup {
 public:
  explicit LimitedGroup(StuckStream& stream)
      : DeviceGroup(gpu::emulated::backend().ops), stream_(stream) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "limited"; }
  bool is_capturable() const override { return true; }
  void all_reduce_sum(gpu::Stream&, float*, size_t, Fold) override {}
  void wait(gpu::Stream&) override {
    ++num_waits;
    if (is_dead) throw Error("the group gave up");
    JobClock::sleep_for(kStep);
    stream_.is_stuck = false;
  }
  int num_waits = 0;
  bool is_dead = false;

 private:
  StuckStream& stream_;
};

class StepWait : public ::testing::Test {
 protected:
  const std::unique_ptr<gpu::Device> device = gpu::emulated::backend().open(0);
  StuckStream stream{*device};
  LimitedGroup group{stream};
  GpuStepWait wait;
  int num_looks = 0;
  bool ends_early = false;
  // How often the thread was free for a while.
  int looks_of_step(const LaunchSizes& sizes) {
    const int before = num_looks;
    wait.begin(sizes);
    stream.is_stuck = true;
    while (const auto until = wait.next_look(stream, group)) {
      ++num_looks;
      JobClock::sleep_until(*until);
      if (ends_early) stream.is_stuck = false;
    }
    wait.finish(stream, group);
    return num_looks - before;
  }
};

TEST_F(StepWait, ListensWhereTheTimeIsKnownThenAsksTheGroup) {
  EXPECT_EQ(looks_of_step(kSizes), 0);
  // Unless this thread stood still for most of a step, it listens; a test that hangs has failed.
  while (looks_of_step(kSizes) < 2) {
  }
  EXPECT_EQ(looks_of_step({.rows = 40}), 0);
  while (looks_of_step({.rows = 60}) < 2) {  // of the same power of two
  }
  const int num_waits = group.num_waits;
  ends_early = true;
  while (looks_of_step(kSizes) == 0) {
  }
  EXPECT_EQ(looks_of_step(kSizes) / 2, 0);  // one at most
  EXPECT_GE(group.num_waits, num_waits + 2);
}

TEST_F(StepWait, ADeviceThatNeverEndsCostsTheGroupsLimit) {
  looks_of_step(kSizes);
  group.is_dead = true;
  while (num_looks == 0) {
    EXPECT_TRUE(fails_with([&] { looks_of_step(kSizes); }, "the group gave up"));
  }
  const int before = num_looks;
  stream.is_stuck = false;
  EXPECT_TRUE(fails_with([&] { wait.finish(stream, group); }, "the group gave up"));
  EXPECT_EQ(num_looks, before);
}

TEST_F(StepWait, OfAStreamThatFailsTheGroupIsAskedFirst) {
  stream.is_broken = true;
  const auto finish = [&] { wait.finish(stream, group); };
  EXPECT_TRUE(fails_with(finish, "the GPU failed (what the test says)"));
  group.is_dead = true;
  EXPECT_TRUE(fails_with(finish, "the group gave up"));
}

}  // namespace
}  // namespace outrider::test
