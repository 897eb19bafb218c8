// The job's clock, real and virtual: who runs when, and that it is the same every time.
#include "runtime/base/clock.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/virtual_clock.h"
#include "tests/base/error_sentence.h"

namespace outrider::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Each body on its own thread, as members of virtual time.
void run_members(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  std::vector<int> seats;
  for (size_t i = 0; i < bodies.size(); ++i) seats.push_back(ClockSeat::reserve());
  for (size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      const ClockSeat seat(seats[i]);
      bodies[i]();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JobClock, IsTheSystemsWithoutAVirtualOne) {
  EXPECT_FALSE(JobClock::is_virtual());
  EXPECT_FALSE(JobClock::is_virtual_here());
  EXPECT_EQ(ClockSeat::reserve(), -1);
  const ClockSeat seat(-1);
  const auto before = std::chrono::steady_clock::now();
  const auto now = JobClock::now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, std::chrono::steady_clock::now());
  JobClock::sleep_until(now + milliseconds(2));
  EXPECT_GE(std::chrono::steady_clock::now(), now + milliseconds(2));
  JobClock::record_event();
}

TEST(VirtualClock, TimePassesWhenAllWaitAndInOrder) {
  std::vector<std::string> order;
  VirtualClock clock;
  const auto begin = JobClock::now();
  const auto say = [&](const std::string& who) {
    order.push_back(who + std::to_string((JobClock::now() - begin) / milliseconds(1)));
  };
  const auto body = [&](const std::string& who, milliseconds step) {
    return [&, who, step] {
      EXPECT_TRUE(JobClock::is_virtual_here());
      for (int i = 0; i < 3; ++i) {
        JobClock::sleep_for(step);
        say(who);
      }
    };
  };
  run_members({body("a", milliseconds(2000)), body("b", milliseconds(3000))});
  EXPECT_EQ(order,
            (std::vector<std::string>{"a2000", "b3000", "a4000", "a6000", "b6000", "b9000"}));
  EXPECT_FALSE(JobClock::is_virtual_here());
  EXPECT_TRUE(JobClock::is_virtual());
}

TEST(VirtualClock, AListenerIsWokenByAnEventWhenItComes) {
  VirtualClock clock;
  const auto begin = JobClock::now();
  std::vector<microseconds> heard;
  run_members({[&] {
                 for (int i = 0; i < 3; ++i) {
                   JobClock::listen_until(begin + milliseconds(10));
                   heard.push_back(
                       std::chrono::duration_cast<microseconds>(JobClock::now() - begin));
                 }
                 // One that was noted before the wait, and lies in its time.
                 JobClock::sleep_until(begin + milliseconds(21));
                 JobClock::listen_until(begin + milliseconds(100));
                 heard.push_back(std::chrono::duration_cast<microseconds>(JobClock::now() - begin));
               },
               [&] {
                 JobClock::sleep_for(milliseconds(3));
                 JobClock::record_event();
                 JobClock::record_event(microseconds(250));
                 JobClock::sleep_until(begin + milliseconds(20));
                 JobClock::record_event(milliseconds(5));
               }});
  EXPECT_EQ(heard,
            (std::vector<microseconds>{
                microseconds(3000), microseconds(3250), microseconds(10000), microseconds(25000)}));
}

TEST(VirtualClock, AListenerThatDoesNotWantToWaitGetsOnAllTheSame) {
  VirtualClock clock;
  const auto begin = JobClock::now();
  bool done = false;
  run_members({[&] {
                 while (!done) JobClock::listen_until(JobClock::now());
                 EXPECT_GE(JobClock::now(), begin + milliseconds(1));
               },
               [&] {
                 JobClock::sleep_for(milliseconds(1));
                 done = true;
               }});
}

TEST(VirtualClock, AConditionIsMetAtOnceOrTimesOut) {
  VirtualClock clock;
  const auto begin = JobClock::now();
  std::mutex mutex;
  ClockCondition condition;
  bool filled = false;
  run_members({[&] {
                 std::unique_lock lock(mutex);
                 const auto is_filled = [&] { return filled; };
                 EXPECT_FALSE(condition.wait_for(lock, milliseconds(5), is_filled));
                 EXPECT_EQ(JobClock::now(), begin + milliseconds(5));
                 EXPECT_TRUE(condition.wait_for(lock, milliseconds(500), is_filled));
                 EXPECT_EQ(JobClock::now(), begin + milliseconds(7));
               },
               [&] {
                 JobClock::sleep_for(milliseconds(7));
                 std::lock_guard lock(mutex);
                 filled = true;
                 condition.notify_one();
               }});
}

TEST(VirtualClock, AMemberMayStartAndJoinOthers) {
  VirtualClock clock;
  const auto begin = JobClock::now();
  run_members({[&] {
    std::thread child([&, reserved = ClockSeat::reserve()] {
      const ClockSeat seat(reserved);
      EXPECT_EQ(JobClock::now(), begin);
      JobClock::sleep_for(milliseconds(5));
      EXPECT_EQ(JobClock::now(), begin + milliseconds(5));
    });
    JobClock::sleep_for(milliseconds(9));
    child.join();  // it has left at 5 ms
    EXPECT_EQ(JobClock::now(), begin + milliseconds(9));
  }});
}

TEST(VirtualClock, HistoriesOfEqualRunsAreEqual) {
  const auto history = [](int step_us) {
    VirtualClock clock;
    const auto body = [&](int factor) {
      return [=] {
        for (int i = 0; i < 200; ++i) JobClock::sleep_for(microseconds(factor * step_us + i % 7));
      };
    };
    run_members({body(3), body(5), body(7)});
    EXPECT_GT(clock.num_turns(), 500);
    return clock.history();
  };
  EXPECT_EQ(history(10), history(10));
  EXPECT_NE(history(10), history(11));
}

TEST(VirtualClock, ThereIsOneAtATime) {
  const VirtualClock clock;
  EXPECT_TRUE(fails_with([] { const VirtualClock second; }, "has a virtual clock already"));
}

}  // namespace
}  // namespace outrider::test
