// The thread pool: every thread runs every job once, ranges cover everything once, sleeping workers
// wake.
#include "runtime/ops/cpu/threads/thread_pool.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/error.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

TEST(ThreadPool, EveryThreadRunsEveryJobOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    std::vector<int64_t> counts(static_cast<size_t>(threads) * 16,
                                0);  // own cache line each; unguarded on purpose
    constexpr int kJobs = 3000;
    for (int job = 0; job < kJobs; ++job) {
      pool.run([&](int thread, int num) {
        EXPECT_EQ(num, threads);
        counts[static_cast<size_t>(thread) * 16] += job;
      });
    }
    for (int thread = 0; thread < threads; ++thread) {
      EXPECT_EQ(counts[static_cast<size_t>(thread) * 16], int64_t{kJobs} * (kJobs - 1) / 2);
    }
  }
}

ThreadPlan crowded(int num_threads) {
  ThreadPlan plan(num_threads);
  plan.crowded = true;
  return plan;
}

TEST(ThreadPool, CrowdedThreadsSleepAndWakeForEveryJob) {
  for (const int threads : {1, 2, 7}) {
    ThreadPool pool(crowded(threads));
    std::atomic<int> runs{0};
    for (int job = 0; job < 2000; ++job) {
      pool.run([&](int, int) { ++runs; });
      ASSERT_EQ(runs.load(), threads * (job + 1));  // all were waited for
    }
  }
}

// Waiting for a worker that takes its time: polled for, it would cost the caller as much.
TEST(ThreadPool, ACrowdedCallerUsesNoProcessorWhileItWaits) {
  ThreadPool pool(crowded(2));
  const std::clock_t before = std::clock();
  pool.run([](int thread, int) {
    if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  EXPECT_LE(1e3 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 40);
}

TEST(ThreadPool, RangesCoverEverythingOnce) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 3, 4, 100, 101}) {
    std::vector<int> seen(static_cast<size_t>(count), 0);
    pool.for_range(count, false, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const int times : seen) EXPECT_EQ(times, 1);
  }
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(3);
  std::atomic<int> runs{0};
  for (int job = 0; job < 60; ++job) {
    // Around the polling time, so that some jobs arrive just as a worker decides to sleep.
    std::this_thread::sleep_for(std::chrono::microseconds(job % 3 == 0 ? 2000 : 30 + job));
    pool.run([&](int, int) { ++runs; });
  }
  EXPECT_EQ(runs.load(), 180);
}

// Seven workers that polled all the time would use up to seven times the waiting time; asleep they
// use none of it. Processor time, so a busy machine changes nothing.
TEST(ThreadPool, IdleWorkersUseNoProcessor) {
  ThreadPool pool(8);
  std::atomic<int> runs{0};
  pool.run([&](int, int) { ++runs; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // beyond the polling time
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const double used_ms = 1e3 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LE(used_ms, 40);
  pool.run([&](int, int) { ++runs; });
  EXPECT_EQ(runs.load(), 16);
}

TEST(ThreadPool, ManyPoolsAtOnce) {
  std::vector<std::thread> ranks;
  std::atomic<int64_t> total{0};
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] {
      ThreadPool pool(3);
      for (int job = 0; job < 300; ++job) {
        pool.for_range(100, false, [&](int64_t begin, int64_t end) { total += end - begin; });
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(total.load(), 4 * 300 * 100);
}

TEST(ThreadPool, StartsAndStopsAgainAndAgain) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(1 + i % 4);
}

// Where a container allows fewer: a sentence, and those that had started have ended.
TEST(ThreadPoolDeathTest, ThreadsThatCannotBeMadeAreAnError) {
  const auto start_many = [] {
    const rlimit limit{1 << 30, 1 << 30};  // each thread wants a stack of some MiB
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadPool pool(1024);
    } catch (const Error& error) {
      std::_Exit(std::string(error.what()).find("of 1024 threads") != std::string::npos ? 0 : 2);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(start_many(), ::testing::ExitedWithCode(0), "");
}

TEST(ThreadPool, RefusesImpossibleCounts) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
  EXPECT_THROW(ThreadPool(1 << 20), Error);
  EXPECT_THROW(Context(0), Error);
}

}  // namespace
}  // namespace outrider::ops
