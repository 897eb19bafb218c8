// The coordinator's end of the draft link on a clock of our own: how long it waits, when the draft
// counts as down, and what it does with damaged frames.
#include "runtime/ranks/coordinator/draft_link.h"

#include <gtest/gtest.h>

#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

using Clock = DraftLink::Clock;
constexpr uint32_t kEpoch = 5;

Clock::duration ms(double value) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(value));
}

// A world whose other end the test plays.
class ScriptedWorld final : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string host() const override { return "test"; }
  int num_ranks_here(int num_ranks) const override { return num_ranks; }
  void post(int, Bytes message) override { sent.push_back(std::move(message)); }
  std::optional<Bytes> poll(int) override {
    if (incoming.empty()) return std::nullopt;
    Bytes message = std::move(incoming.front());
    incoming.pop_front();
    return message;
  }
  size_t num_unsent_bytes(int) override { return num_unsent; }
  [[noreturn]] void abort(const std::string& reason) override { throw Error(reason); }
  void check_alive(int) override {}
  std::unique_ptr<TargetGroup> make_target_group(int) override { return make_solo_group(); }
  void end_unresponsive(int) override {}
  void finish(int) override {}

  std::vector<Bytes> sent;
  std::deque<Bytes> incoming;
  size_t num_unsent = 0;
};

DraftRequest asking_request() {
  DraftRequest request;
  request.commits.push_back({1, 0, 5, {7}, 4});
  return request;
}

uint64_t last_serial(const ScriptedWorld& world) {
  Frame frame;
  EXPECT_TRUE(decode_frame(world.sent.back(), kEpoch, &frame));
  return decode_draft_request(frame.payload).serial;
}

Bytes reply_to(uint64_t serial, uint32_t epoch = kEpoch) {
  DraftReply reply;
  reply.serial = serial;
  reply.step_time_us = 3000;
  reply.num_steps = 3;
  reply.blocks.push_back({1, 0, 6, {{9, {}}}});
  return encode_frame({.kind = FrameKind::kReply, .epoch = epoch, .payload = encode(reply)});
}

struct LinkTest : ::testing::Test {
  ScriptedWorld world;
  DraftLink link{world, 1, kEpoch};
  Clock::time_point now = Clock::now();

  // One round in which the answer takes this long.
  void answer_in(double answer_ms) {
    link.send(asking_request(), now);
    now += ms(answer_ms);
    world.incoming.push_back(reply_to(last_serial(world)));
    ASSERT_EQ(link.receive(now).size(), 1u);
    link.record_wait(true);
  }
};

TEST_F(LinkTest, AnEmptyRequestIsNotSent) {
  link.send(DraftRequest{}, now);
  EXPECT_TRUE(world.sent.empty());
}

TEST_F(LinkTest, TheDeadlineIsTwiceTheUsualAnswerWithinItsBounds) {
  link.send(asking_request(), now);
  EXPECT_EQ(link.deadline(0.0), now + ms(50)) << "nothing known yet: the longest";
  EXPECT_EQ(link.deadline(0.2), now + ms(200))
      << "a slow target can wait as long as a block saves it";
  for (int i = 0; i < 60; ++i) answer_in(10);
  link.send(asking_request(), now);
  EXPECT_NEAR(std::chrono::duration<double>(link.deadline(0.0) - now).count(), 0.020, 0.001);
  for (int i = 0; i < 80; ++i) answer_in(0.1);
  link.send(asking_request(), now);
  EXPECT_NEAR(std::chrono::duration<double>(link.deadline(0.0) - now).count(), 0.002, 1e-6);
  EXPECT_NEAR(link.draft_step_s(), 0.001, 1e-6);
}

TEST_F(LinkTest, WhileTokensComeTheyAreWaitedForOneByOneButNotForEver) {
  for (int i = 0; i < 80; ++i) answer_in(10);
  link.send(asking_request(), now);
  const Clock::time_point sent = now;
  EXPECT_NEAR(std::chrono::duration<double>(link.deadline(0.0) - sent).count(), 0.020, 0.001);
  for (int i = 0; i < 30; ++i) {  // a token each 5 ms
    now += ms(5);
    world.incoming.push_back(reply_to(last_serial(world)));
    link.receive(now);
    EXPECT_LE(link.deadline(0.0), sent + ms(50)) << i;
  }
  EXPECT_EQ(link.deadline(0.0), sent + ms(50)) << "tokens that never end cost no more than silence";
  const Clock::duration more = link.deadline(0.2) - now;
  EXPECT_NEAR(std::chrono::duration<double>(more).count(), 0.010, 1e-6)
      << "twice the usual time between them";
}

TEST_F(LinkTest, AnswersThatNobodyWaitsForSayNothingOfTheWait) {
  DraftRequest begun = asking_request();
  begun.commits[0].in_flight = 2;
  for (int i = 0; i < 40; ++i) {
    link.send(begun, now);
    now += ms(30);
    world.incoming.push_back(reply_to(last_serial(world)));
    link.receive(now);
  }
  for (int i = 0; i < 80; ++i) answer_in(5);
  link.send(asking_request(), now);
  EXPECT_NEAR(std::chrono::duration<double>(link.deadline(0.0) - now).count(), 0.010, 0.001);
  // But silence does.
  answer_in(5);
  link.send(begun, now);
  EXPECT_EQ(link.update_state(now + ms(310)), DraftState::kDown);
}

TEST_F(LinkTest, NoAnswerIsDueForASequenceThatIsOver) {
  link.send(asking_request(), now);
  DraftRequest over;
  over.closes = {1};
  link.send(over, now);
  EXPECT_EQ(link.update_state(now + ms(60000)), DraftState::kUp);
}

TEST_F(LinkTest, MissesInARowSkipTheWait) {
  answer_in(10);
  int num_waits = 0;
  for (int i = 0; i < 200; ++i) {
    link.send(asking_request(), now);
    if (link.deadline(0.0) > now) ++num_waits;
    link.record_wait(false);
    now += ms(0.1);
  }
  EXPECT_GE(num_waits, 3);
  EXPECT_LE(num_waits, 10) << "a draft that never answers must cost almost nothing";
  EXPECT_EQ(link.num_deadline_misses(), static_cast<uint64_t>(num_waits));
  // A late but quick-enough answer brings the wait back.
  world.incoming.push_back(reply_to(last_serial(world)));
  link.receive(now);
  link.send(asking_request(), now);
  EXPECT_GT(link.deadline(0.0), now);
}

TEST_F(LinkTest, DownWhenNothingIsHeardAndUpWithTheNextFrame) {
  answer_in(1);
  EXPECT_EQ(link.update_state(now), DraftState::kUp);
  now += ms(60000);
  EXPECT_EQ(link.update_state(now), DraftState::kUp) << "nothing was asked, so nothing is overdue";
  link.send(asking_request(), now);
  now += ms(290);
  EXPECT_EQ(link.update_state(now), DraftState::kUp);
  now += ms(20);
  EXPECT_EQ(link.update_state(now), DraftState::kDown);
  world.incoming.push_back(
      encode_frame({.kind = FrameKind::kAlive, .epoch = kEpoch, .payload = {}}));
  link.receive(now);
  EXPECT_EQ(link.update_state(now), DraftState::kUp);
  // It was only slow, so it gets more time from now on.
  now += ms(400);
  EXPECT_EQ(link.update_state(now), DraftState::kUp);
}

TEST_F(LinkTest, AGoneEngineIsDownAtOnce) {
  link.send(asking_request(), now);
  world.incoming.push_back(
      encode_frame({.kind = FrameKind::kGone, .epoch = kEpoch, .payload = {}}));
  link.receive(now);
  EXPECT_EQ(link.update_state(now), DraftState::kDown);
}

TEST_F(LinkTest, AliveFramesKeepALongAnswerUp) {
  link.send(asking_request(), now);
  for (int i = 0; i < 20; ++i) {
    now += ms(200);
    world.incoming.push_back(
        encode_frame({.kind = FrameKind::kAlive, .epoch = kEpoch, .payload = {}}));
    EXPECT_TRUE(link.receive(now).empty());
    EXPECT_EQ(link.update_state(now), DraftState::kUp);
  }
}

TEST_F(LinkTest, DamagedAndStaleFramesAreDropped) {
  link.send(asking_request(), now);
  Bytes damaged = reply_to(1);
  damaged.back() ^= std::byte{1};
  world.incoming.push_back(damaged);
  world.incoming.push_back(reply_to(1, kEpoch + 1));
  world.incoming.push_back(Bytes(3));
  world.incoming.push_back(
      encode_frame({.kind = FrameKind::kReply, .epoch = kEpoch, .payload = Bytes(2)}));
  EXPECT_TRUE(link.receive(now).empty());
  EXPECT_EQ(link.num_dropped_frames(), 4u);
}

TEST_F(LinkTest, NothingIsQueuedForADraftThatTakesNothing) {
  world.num_unsent = 2 << 20;
  link.send(asking_request(), now);
  EXPECT_TRUE(world.sent.empty());
}

TEST(DraftLink, APatientOneWaitsHoweverOftenABlockCameLate) {
  ScriptedWorld world;
  DraftLink link(world, 1, kEpoch, 2.0);
  Clock::time_point now{};
  for (int round = 0; round < 20; ++round) {
    now += ms(100);
    link.send(asking_request(), now);
    EXPECT_EQ(link.deadline(0), now + ms(2000)) << round;
    link.record_wait(false);
    EXPECT_EQ(link.update_state(now), DraftState::kUp);
  }
  EXPECT_EQ(link.update_state(now + ms(200)), DraftState::kDown);  // silent for 2.1 s
}

}  // namespace
}  // namespace outrider
