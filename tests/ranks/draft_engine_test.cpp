// The draft's other process: what it knows of its host before MPI does, and its lives.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <latch>

#include "runtime/base/log.h"
#include "runtime/ranks/draft/engine.h"
#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr int kNumTargets = 8;

// Ranks of the draft's host among the targets, and among all.
std::string counted_on_a_host_of(int num_local_ranks) {
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(num_local_ranks).c_str(), 1);
  const auto engine = DraftEngine::start(kNumTargets, [](World& parent, uint32_t) {
    report_ready(
        parent,
        {.problem = fmt::format(
             "{} {}", parent.num_ranks_here(kNumTargets), parent.num_ranks_here(kNumTargets + 1))});
  });
  return engine->wait_report().problem;
}

// A draft on a GPU shares out memory among the job's ranks there, of which it is one.
TEST(DraftEngine, CountsItselfAmongTheRanksOfItsHost) {
  EXPECT_EQ(counted_on_a_host_of(1), "0 1");
  EXPECT_EQ(counted_on_a_host_of(4), "3 4");
  EXPECT_EQ(counted_on_a_host_of(9), "8 9");
}

Bytes bytes_of(std::string_view text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

Bytes frame_of(FrameKind kind, uint32_t epoch, Bytes payload = {}) {
  return encode_frame({.kind = kind, .epoch = epoch, .payload = std::move(payload)});
}

// An engine without a model. Ends when it is asked anything ("die"), or stops ("stop"); tells its
// process as the payload of what it answers otherwise.
void play_engine(World& parent, uint32_t epoch) {
  parent.post(0, bytes_of("a GPU"));
  EXPECT_EQ(receive(parent, 0, 1), bytes_of("may be used"));
  report_ready(parent, {});
  while (true) {
    const Bytes message = receive(parent, 0, 1);
    Frame frame;
    if (!decode_frame(message, epoch, &frame)) continue;
    if (frame.kind == FrameKind::kAlive) parent.post(0, message);
    if (frame.kind == FrameKind::kShutdown) return parent.post(0, message);
    if (frame.kind != FrameKind::kRequest) continue;
    if (frame.payload == bytes_of("die")) _exit(3);
    if (frame.payload == bytes_of("stop")) raise(SIGSTOP);
    parent.post(0, frame_of(FrameKind::kReply, epoch, bytes_of(std::to_string(getpid()))));
  }
}

// The next frame that is no sign of life.
Frame next_frame(World& world) {
  Frame frame;
  do {
    if (!decode_frame(receive(world, 1, 2, 30), &frame)) ADD_FAILURE() << "not a frame";
  } while (frame.kind == FrameKind::kAlive);
  return frame;
}

pid_t pid_of_life(World& world, uint32_t epoch) {
  world.post(1, frame_of(FrameKind::kRequest, epoch, bytes_of("who")));
  const Frame reply = next_frame(world);
  EXPECT_EQ(reply.kind, FrameKind::kReply);
  EXPECT_EQ(reply.epoch, epoch);
  return std::atoi(
      std::string(reinterpret_cast<const char*>(reply.payload.data()), reply.payload.size())
          .c_str());
}

void expect_new_life(World& world, uint32_t epoch) {
  const Frame gone = next_frame(world);
  EXPECT_EQ(gone.kind, FrameKind::kGone);
  EXPECT_EQ(gone.epoch, epoch - 1);
  const Frame hello = next_frame(world);
  EXPECT_EQ(hello.kind, FrameKind::kHello);
  EXPECT_EQ(hello.epoch, epoch);
}

void expect_goodbye(World& world, uint32_t epoch) {
  world.post(1, frame_of(FrameKind::kShutdown, epoch));
  Frame frame;
  do {
    frame = next_frame(world);
  } while (frame.kind != FrameKind::kShutdown);
  EXPECT_EQ(frame.epoch, epoch) << "in the epoch that the coordinator knows";
}

bool lives(pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

// Runs it between a coordinator that the test plays and an engine without a model.
void with_engine(const std::function<void(World& world)>& coordinator) {
  set_log_level(LogLevel::kError);
  auto engine = DraftEngine::start(1, play_engine);  // before there are threads
  run_in_process(2, [&](World& world) {
    if (world.rank() == 0) return coordinator(world);
    EXPECT_EQ(engine->wait_message(), bytes_of("a GPU"));
    engine->send(bytes_of("may be used"));
    EXPECT_EQ(engine->wait_report().problem, "");
    engine->relay(world, bytes_of("may be used"));
    engine.reset();
  });
}

TEST(DraftEngine, ComesBackEachTimeItDiesAndLeavesNothingBehind) {
  pid_t last = 0;
  with_engine([&](World& world) {
    pid_t pid = pid_of_life(world, 1);
    world.post(1, frame_of(FrameKind::kRequest, 1, bytes_of("die")));
    expect_new_life(world, 2);
    EXPECT_FALSE(lives(pid));
    world.post(1, frame_of(FrameKind::kRequest, 1, bytes_of("die")));  // of the life before
    pid = pid_of_life(world, 2);
    kill(pid, SIGKILL);
    expect_new_life(world, 3);
    last = pid_of_life(world, 3);
    expect_goodbye(world, 2);
  });
  EXPECT_FALSE(lives(last));
}

TEST(DraftEngine, AStoppedOneIsReplaced) {
  with_engine([&](World& world) {
    const pid_t pid = pid_of_life(world, 1);
    world.post(1, frame_of(FrameKind::kRequest, 1, bytes_of("stop")));
    expect_new_life(world, 2);
    EXPECT_FALSE(lives(pid));
    EXPECT_NE(pid_of_life(world, 2), pid);
    expect_goodbye(world, 2);
  });
}

TEST(DraftEngine, TheJobMayEndWhileItIsAway) {
  with_engine([&](World& world) {
    world.post(1, frame_of(FrameKind::kRequest, 1, bytes_of("die")));
    EXPECT_EQ(next_frame(world).kind, FrameKind::kGone);
    expect_goodbye(world, 1);
  });
}

bool has_ended(const std::string& pid) {
  std::string stat;
  std::getline(std::ifstream("/proc/" + pid + "/stat"), stat);
  return stat.empty() || stat.find(") Z ") != std::string::npos;
}

// What it says between its goodbye and its end reaches the coordinator however late its rank reads.
TEST(DraftEngine, ItsLastWordsArriveAfterItHasEnded) {
  set_log_level(LogLevel::kError);
  auto engine = DraftEngine::start(1, [](World& parent, uint32_t epoch) {
    parent.post(0, bytes_of(std::to_string(getpid())));
    report_ready(parent, {});
    parent.post(0, frame_of(FrameKind::kShutdown, epoch));
    parent.post(0, bytes_of("spans"));
  });
  run_in_process(2, [&](World& world) {
    if (world.rank() == 0) {
      expect_goodbye(world, 1);
      EXPECT_EQ(receive(world, 1, 2, 30), bytes_of("spans"));
      return;
    }
    const Bytes pid = engine->wait_message().value();
    EXPECT_EQ(engine->wait_report().problem, "");
    while (!has_ended({reinterpret_cast<const char*>(pid.data()), pid.size()})) usleep(1000);
    engine->relay(world, {});
    engine->relay_rest(world);
    engine.reset();
  });
}

// A coordinator that takes nothing does not fill the memory of the draft's rank.
TEST(DraftEngine, WhatNobodyTakesIsLost) {
  set_log_level(LogLevel::kError);
  auto engine = DraftEngine::start(1, [](World& parent, uint32_t epoch) {
    report_ready(parent, {});
    const Bytes reply = frame_of(FrameKind::kReply, epoch, Bytes(size_t{1} << 20));
    for (int i = 0; i < 40; ++i) parent.post(0, reply);
    parent.post(0, frame_of(FrameKind::kShutdown, epoch));
  });
  std::latch relayed(1);
  run_in_process(2, [&](World& world) {
    if (world.rank() == 1) {
      EXPECT_EQ(engine->wait_report().problem, "");
      engine->relay(world, {});
      engine.reset();
      return relayed.count_down();
    }
    world.post(1, frame_of(FrameKind::kShutdown, 1));
    relayed.wait();
    int num_replies = 0;
    while (next_frame(world).kind == FrameKind::kReply) ++num_replies;
    EXPECT_LE(num_replies, 17);
  });
}

TEST(RestartTimes, GrowUntilALifeWasGood) {
  RestartTimes times(0.25, 2);
  EXPECT_EQ(times.pause_s(), 0.25);
  EXPECT_EQ(times.pause_s(), 0.5);
  times.began(20);
  EXPECT_EQ(times.pause_s(19), 1.0) << "it served for less time than it took to begin";
  EXPECT_EQ(times.pause_s(), 2.0);
  EXPECT_EQ(times.pause_s(), 2.0);
  EXPECT_EQ(times.pause_s(21), 0.25);
  times.began(0.1);
  EXPECT_EQ(times.pause_s(0.5), 0.5) << "less than a second";
}

TEST(HangWatch, AsksBeforeItJudgesAndLearnsFromTheHonest) {
  using Verdict = HangWatch::Verdict;
  const auto s = [](double seconds) {
    return JobClock::time_point{} +
           std::chrono::duration_cast<JobClock::duration>(std::chrono::duration<double>(seconds));
  };
  HangWatch watch;
  watch.begin(s(0));
  EXPECT_EQ(watch.look(s(0.9)), Verdict::kFine);
  EXPECT_EQ(watch.look(s(100)), Verdict::kAsk) << "this process may have been away itself";
  EXPECT_EQ(watch.look(s(104.9)), Verdict::kFine);
  watch.heard(s(104.9));
  EXPECT_NEAR(watch.patience_s(), 19.6, 1e-6);
  EXPECT_EQ(watch.look(s(106)), Verdict::kAsk);
  EXPECT_EQ(watch.look(s(125)), Verdict::kFine);
  EXPECT_EQ(watch.look(s(200)), Verdict::kFine) << "the whole machine may have stood still";
  EXPECT_EQ(watch.look(s(200.4)), Verdict::kFine);
  EXPECT_EQ(watch.look(s(200.5)), Verdict::kHung);
  EXPECT_NEAR(watch.patience_s(), 39.2, 1e-6) << "the next one gets more time";
}

}  // namespace
}  // namespace outrider
