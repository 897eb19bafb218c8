// The group over NCCL with a fake library (fake_nccl.cpp) on the emulated device, members being
// threads: setting up, sums, and every way to fail in bounded time.
#include "runtime/comm/device/nccl_group.h"

#include <atomic>
#include <cstdlib>
#include <thread>

#include "runtime/comm/device/nccl_library.h"
#include "runtime/comm/world/world.h"
#include "tests/base/error_sentence.h"
#include "tests/base/tries.h"
#include "tests/comm/device_group_checks.h"
#include "tests/comm/stuck_stream.h"

namespace outrider::test {
namespace {

const gpu::Backend& backend() { return stuck_backend(); }

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override { tell(nullptr, nullptr); }
  void TearDown() override { tell(nullptr, nullptr); }
  static void tell(const char* what, const char* ranks) {
    unsetenv("FAKE_NCCL");
    unsetenv("FAKE_NCCL_RANKS");
    if (what != nullptr) setenv("FAKE_NCCL", what, 1);
    if (ranks != nullptr) setenv("FAKE_NCCL_RANKS", ranks, 1);
  }
  // With limits that no machine is too slow for.
  static NcclOptions options() {
    return {.library = FAKE_NCCL, .max_count = 64, .limit_s = 100, .init_limit_s = 100};
  }
  // For sums that end by their limit.
  static NcclOptions impatient() {
    NcclOptions made = options();
    made.limit_s = 0.7;
    return made;
  }
  // Body per member; every member's error, "" where there was none.
  static std::vector<std::string> errors(
      int num_ranks,
      const NcclOptions& options,
      const std::function<void(DeviceGroup&, StuckStream&)>& body) {
    std::vector<std::string> found(static_cast<size_t>(num_ranks));
    run_in_process(num_ranks, [&](World& world) {
      const auto device = backend().open(0);
      const auto over_host = world.make_target_group(num_ranks);
      try {
        StuckStream stream(*device);
        const auto group = make_nccl_group(*device, backend(), *over_host, options);
        body(*group, stream);
      } catch (const Error& error) {
        found[static_cast<size_t>(world.rank())] = error.what();
      }
      uint64_t done = 1;
      over_host->all_reduce_sum(std::span(&done, 1));
    });
    return found;
  }
  // Where a limit is met the members must meet within it before.
  static void expect_errors(const std::vector<std::string>& expected,
                            const NcclOptions& options,
                            const std::function<void(DeviceGroup&, StuckStream&)>& body) {
    std::vector<std::string> found;
    EXPECT_TRUE(in_one_of_three_tries([&] {
      found = errors(static_cast<int>(expected.size()), options, body);
      return found == expected;
    })) << ::testing::PrintToString(found);
  }
  static void sum_once(DeviceGroup& group, StuckStream& stream) {
    float values[4] = {1, 2, 3, 4};
    group.all_reduce_sum(stream, values, 4, Fold::kRankOrder);
    group.wait(stream);
  }
};

TEST_F(Nccl, Sums) {
  for (const char* const how : {"", "slow"}) {
    tell(how, nullptr);
    for (const int num_ranks : {2, 3, 4}) {
      const auto found = errors(num_ranks, options(), [](DeviceGroup& group, StuckStream& stream) {
        EXPECT_EQ(group.name(), "nccl 2.28.9");
        EXPECT_TRUE(group.is_capturable());
        const auto device = backend().open(0);
        check_sums(group, *device, stream, 150);
        check_sum_and_norm(group, *device, backend().ops, stream, 3, 24);
      });
      for (const std::string& error : found) EXPECT_EQ(error, "");
    }
  }
}

TEST_F(Nccl, SettingsThatTheUserMadeStay) {
  setenv("NCCL_PROTO", "LL", 1);
  pin_nccl_settings();
  errors(2, options(), sum_once);
  EXPECT_STREQ(std::getenv("NCCL_PROTO"), "LL");
  EXPECT_NE(nccl_settings().find("NCCL_PROTO=LL"), std::string::npos) << nccl_settings();
  EXPECT_NE(nccl_settings().find("NCCL_NVLS_ENABLE=0"), std::string::npos) << nccl_settings();
  unsetenv("NCCL_PROTO");
}

TEST_F(Nccl, WhatCannotBeSetUpIsOneSentenceForAll) {
  const auto expect = [](const std::vector<std::string>& found, const std::string& begin) {
    for (const std::string& error : found) EXPECT_EQ(error.substr(0, begin.size()), begin);
  };
  NcclOptions other = options();
  other.library = "/nowhere/libnccl.so.2";
  expect(errors(2, other, sum_once),
         "NCCL cannot be used: rank 0: NCCL could not be loaded (OUTRIDER_NCCL names the file to "
         "take): /nowhere/libnccl.so.2: cannot open");
  tell("no_id", nullptr);
  expect(errors(3, options(), sum_once),
         "NCCL cannot be used: rank 0: NCCL could not begin: what the fake says");
  tell("no_peers", "1");
  NcclOptions brief = options();
  brief.init_limit_s = 0.7;
  expect_errors(
      std::vector<std::string>(3,
                               "NCCL cannot be used: rank 1: NCCL: meeting the other ranks did not "
                               "get done within 0.7 s"),
      brief,
      sum_once);
}

// Without a GPU this is all that can be asked of it.
TEST_F(Nccl, TheRealLibraryHasWhatIsCalled) {
  try {
    const NcclLibrary& library = NcclLibrary::load("");
    EXPECT_EQ(library.version().substr(0, 2), "2.");
  } catch (const Error& error) {
    if (std::string(error.what()).find("could not be loaded") == std::string::npos) throw;
    GTEST_SKIP() << error.what();
  }
}

TEST_F(Nccl, AnOldLibraryIsRefused) {
  tell("old", nullptr);
  EXPECT_THROW(
      try { NcclLibrary::load(FAKE_NCCL_COPY); } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("NCCL 2.27.5 at "), std::string::npos);
        EXPECT_NE(std::string(error.what()).find("is too old: 2.28.0 or newer is needed"),
                  std::string::npos);
        throw;
      },
      Error);
}

TEST_F(Nccl, RanksWithOtherVersionsAreRefusedTogether) {
  const std::string other = std::string("/.") + FAKE_NCCL_COPY;  // under a name of its own
  tell("new", nullptr);
  NcclLibrary::load(other);
  tell(nullptr, nullptr);
  std::vector<std::string> found(3);
  run_in_process(3, [&](World& world) {
    const auto device = backend().open(0);
    const auto over_host = world.make_target_group(3);
    NcclOptions mine = options();
    if (world.rank() == 1) mine.library = other;
    found[static_cast<size_t>(world.rank())] =
        error_of([&] { make_nccl_group(*device, backend(), *over_host, mine); });
  });
  for (const std::string& error : found) {
    EXPECT_EQ(error, "NCCL cannot be used: rank 1: it has NCCL 2.29.1, rank 0 has 2.28.9");
  }
}

TEST_F(Nccl, ASumThatIsNeverDoneEndsEveryWait) {
  // Two have queued theirs, the third has not come: nobody's is ever done.
  tell("silent", nullptr);
  const std::string gave_up = "NCCL: the other ranks' GPUs did not answer within 0.7 s";
  expect_errors({gave_up, gave_up, ""}, impatient(), [](DeviceGroup& group, StuckStream& stream) {
    sum_once(group, stream);
    if (group.rank() != 2) sum_once(group, stream);
  });
}

TEST_F(Nccl, WhatNcclReportsEndsTheWait) {
  tell("lost", nullptr);
  const auto found = errors(2, options(), [](DeviceGroup& group, StuckStream& stream) {
    sum_once(group, stream);
    sum_once(group, stream);
  });
  for (const std::string& error : found) {
    EXPECT_EQ(error,
              "NCCL: remote process exited or there was a network error (what the fake says)");
  }
}

TEST_F(Nccl, ADeadRankIsNamedWhereTheJobKnowsIt) {
  NcclOptions watched = impatient();
  std::atomic<bool> is_gone = false;
  watched.check_alive = [&] {
    if (is_gone) throw Error("rank 1 (host h, process 7) is gone");
  };
  tell("silent", nullptr);
  std::string found;
  EXPECT_TRUE(in_one_of_three_tries([&] {
    is_gone = false;
    found = errors(2, watched, [&](DeviceGroup& group, StuckStream& stream) {
      sum_once(group, stream);
      if (group.rank() == 0) return sum_once(group, stream);
      is_gone = true;
    })[0];
    return found == "rank 1 (host h, process 7) is gone";
  })) << found;
}

// The stream's own failure comes before the watch has seen anything.
TEST_F(Nccl, AStreamThatFailsIsADeadRanksFaultWhereTheJobKnowsOne) {
  for (const bool is_gone : {true, false}) {
    std::atomic<bool> is_known = false;
    NcclOptions watched = options();
    watched.check_alive = [&] {
      if (is_known) throw Error("rank 1 (host h, process 7) is gone");
    };
    const auto found = errors(2, watched, [&](DeviceGroup& group, StuckStream& stream) {
      sum_once(group, stream);
      if (group.rank() != 0) return;
      is_known = is_gone;
      stream.is_broken = true;
      group.wait(stream);
    });
    EXPECT_EQ(
        found[0],
        is_gone ? "rank 1 (host h, process 7) is gone" : "the GPU failed (what the test says)");
  }
}

TEST_F(Nccl, ACallThatIsNeverQueuedIsLeft) {
  tell("unqueued", nullptr);
  expect_errors(std::vector<std::string>(2, "NCCL: a sum did not get done within 0.7 s"),
                impatient(),
                [](DeviceGroup& group, StuckStream& stream) {
                  sum_once(group, stream);
                  sum_once(group, stream);
                });
}

}  // namespace
}  // namespace outrider::test
