// The coordinator's client of the draft on a clock of our own: how long it waits, when the draft
// counts as down, and what it does with damaged frames.
#include "runtime/ranks/coordinator/draft_client.h"

#include <gtest/gtest.h>

#include <deque>

#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

using Clock = DraftClient::Clock;
constexpr uint32_t kEpoch = 5;

Clock::duration ms(double value) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(value));
}

// A link whose other end the test plays.
class ScriptedLink final : public DraftLink {
 public:
  void post(Bytes frame) override { sent.push_back(std::move(frame)); }
  std::optional<Bytes> poll() override {
    if (incoming.empty()) return std::nullopt;
    Bytes message = std::move(incoming.front());
    incoming.pop_front();
    return message;
  }
  size_t num_unsent_bytes() override { return num_unsent; }
  bool is_closed() const override { return closed; }

  std::vector<Bytes> sent;
  std::deque<Bytes> incoming;
  size_t num_unsent = 0;
  bool closed = false;
};

DraftRequest asking_request() {
  DraftRequest request;
  request.commits.push_back({1, 0, 5, {7}, 4});
  return request;
}

uint64_t last_serial(const ScriptedLink& link, uint32_t epoch = kEpoch) {
  Frame frame;
  EXPECT_TRUE(decode_frame(link.sent.back(), epoch, &frame));
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

struct ClientTest : ::testing::Test {
  ScriptedLink link;
  DraftClient client{&link, kEpoch};
  Clock::time_point now = Clock::now();

  // One round in which the answer takes this long.
  void answer_in(double answer_ms) {
    client.send(asking_request(), now);
    now += ms(answer_ms);
    link.incoming.push_back(reply_to(last_serial(link)));
    ASSERT_EQ(client.receive(now).size(), 1u);
    client.record_wait(true);
  }
};

TEST_F(ClientTest, AnEmptyRequestIsNotSent) {
  client.send(DraftRequest{}, now);
  EXPECT_TRUE(link.sent.empty());
}

TEST_F(ClientTest, StatesFollowWhatIsAskedAndWhatComes) {
  using State = DraftClient::State;
  EXPECT_EQ(client.state(), State::kIdle);
  DraftRequest begun = asking_request();
  begun.commits[0].in_flight = 2;
  client.send(begun, now);
  EXPECT_EQ(client.state(), State::kIdle) << "nobody waits for what continues a round in flight";
  client.send(asking_request(), now);
  EXPECT_EQ(client.state(), State::kAsked);
  client.record_tokens(now + ms(3));
  EXPECT_EQ(client.state(), State::kAnswering);
  EXPECT_DOUBLE_EQ(client.asked_s(now + ms(5)), 0.005);
  EXPECT_DOUBLE_EQ(client.silent_s(now + ms(5)), 0.002);
  EXPECT_EQ(client.update(now + ms(60000)), State::kDown);
  link.incoming.push_back(encode_frame(FrameKind::kAlive, kEpoch));
  client.receive(now + ms(60001));
  EXPECT_EQ(client.state(), State::kAnswering);
  client.end_wait();
  EXPECT_EQ(client.state(), State::kIdle);
}

TEST_F(ClientTest, TheDeadlineIsTwiceTheUsualAnswerWithinItsBounds) {
  client.send(asking_request(), now);
  EXPECT_EQ(client.deadline(0.0), now + ms(40)) << "nothing known yet: the longest";
  EXPECT_EQ(client.deadline(0.2), now + ms(200))
      << "a slow target can wait as long as a block saves it";
  for (int i = 0; i < 60; ++i) answer_in(10);
  client.send(asking_request(), now);
  EXPECT_NEAR(std::chrono::duration<double>(client.deadline(0.0) - now).count(), 0.020, 0.001);
  for (int i = 0; i < 80; ++i) answer_in(0.1);
  client.send(asking_request(), now);
  EXPECT_NEAR(std::chrono::duration<double>(client.deadline(0.0) - now).count(), 0.002, 1e-6);
  EXPECT_NEAR(client.draft_step_s(), 0.001, 1e-6);
}

TEST_F(ClientTest, WhileTokensComeTheyAreWaitedForOneByOneButNotForEver) {
  for (int i = 0; i < 80; ++i) answer_in(10);
  client.send(asking_request(), now);
  const Clock::time_point sent = now;
  EXPECT_NEAR(std::chrono::duration<double>(client.deadline(0.0) - sent).count(), 0.020, 0.001);
  for (int i = 0; i < 30; ++i) {  // a token each 5 ms
    now += ms(5);
    link.incoming.push_back(reply_to(last_serial(link)));
    client.receive(now);
    EXPECT_LE(client.deadline(0.0), sent + ms(40)) << i;
  }
  EXPECT_EQ(client.deadline(0.0), sent + ms(40))
      << "tokens that never end cost no more than silence";
  const Clock::duration more = client.deadline(0.2) - now;
  EXPECT_NEAR(std::chrono::duration<double>(more).count(), 0.010, 1e-6)
      << "twice the usual time between them";
}

TEST_F(ClientTest, AnswersThatNobodyWaitsForSayNothingOfTheWait) {
  DraftRequest begun = asking_request();
  begun.commits[0].in_flight = 2;
  for (int i = 0; i < 40; ++i) {
    client.send(begun, now);
    now += ms(30);
    link.incoming.push_back(reply_to(last_serial(link)));
    client.receive(now);
  }
  for (int i = 0; i < 80; ++i) answer_in(5);
  client.send(asking_request(), now);
  EXPECT_NEAR(std::chrono::duration<double>(client.deadline(0.0) - now).count(), 0.010, 0.001);
  // But silence does.
  answer_in(5);
  client.send(begun, now);
  EXPECT_EQ(client.update(now + ms(310)), DraftClient::State::kDown);
}

TEST_F(ClientTest, NoAnswerIsDueForASequenceThatIsOver) {
  client.send(asking_request(), now);
  DraftRequest over;
  over.closes = {1};
  client.send(over, now);
  EXPECT_NE(client.update(now + ms(60000)), DraftClient::State::kDown);
}

TEST_F(ClientTest, MissesInARowSkipTheWait) {
  answer_in(10);
  int num_waits = 0;
  for (int i = 0; i < 200; ++i) {
    client.send(asking_request(), now);
    if (client.deadline(0.0) > now) ++num_waits;
    client.record_wait(false);
    now += ms(0.1);
  }
  EXPECT_GE(num_waits, 3);
  EXPECT_LE(num_waits, 10) << "a draft that never answers must cost almost nothing";
  EXPECT_EQ(client.num_deadline_misses(), static_cast<uint64_t>(num_waits));
  // A late but quick-enough answer brings the wait back.
  link.incoming.push_back(reply_to(last_serial(link)));
  client.receive(now);
  client.send(asking_request(), now);
  EXPECT_GT(client.deadline(0.0), now);
}

TEST_F(ClientTest, DownWhenNothingIsHeardAndUpWithTheNextFrame) {
  answer_in(1);
  EXPECT_NE(client.update(now), DraftClient::State::kDown);
  now += ms(60000);
  EXPECT_NE(client.update(now), DraftClient::State::kDown)
      << "nothing was asked, so nothing is overdue";
  client.send(asking_request(), now);
  now += ms(290);
  EXPECT_NE(client.update(now), DraftClient::State::kDown);
  now += ms(20);
  EXPECT_EQ(client.update(now), DraftClient::State::kDown);
  link.incoming.push_back(encode_frame(FrameKind::kAlive, kEpoch));
  client.receive(now);
  EXPECT_NE(client.update(now), DraftClient::State::kDown);
  // It was only slow, so it gets more time from now on.
  now += ms(400);
  EXPECT_NE(client.update(now), DraftClient::State::kDown);
}

FrameKind kind_of(const Bytes& bytes) {
  Frame frame;
  EXPECT_TRUE(decode_frame(bytes, kEpoch, &frame));
  return frame.kind;
}

// Nobody tells it anything while it is down, so it would never be heard of again.
TEST_F(ClientTest, OneThatIsDownIsAskedOnceASecond) {
  client.send(asking_request(), now);
  now += ms(310);
  EXPECT_EQ(client.update(now), DraftClient::State::kDown);
  ASSERT_EQ(link.sent.size(), 2u);
  EXPECT_EQ(kind_of(link.sent.back()), FrameKind::kAlive);
  for (int i = 0; i < 20; ++i) client.update(now += ms(100));
  EXPECT_EQ(link.sent.size(), 4u);
  link.num_unsent = 2 << 20;
  client.update(now += ms(5000));
  EXPECT_EQ(link.sent.size(), 4u);
}

TEST_F(ClientTest, WhatWasForgottenIsNotWaitedFor) {
  client.send(asking_request(), now);
  client.forget_all();
  EXPECT_NE(client.update(now + ms(60000)), DraftClient::State::kDown);
  link.num_unsent = 2 << 20;
  client.send(asking_request(), now);
  EXPECT_EQ(link.sent.size(), 1u);
  EXPECT_TRUE(client.is_congested());
  link.num_unsent = 0;
  client.send(asking_request(), now);
  ASSERT_EQ(link.sent.size(), 3u);
  EXPECT_EQ(kind_of(link.sent[1]), FrameKind::kForget) << "kept until it could be sent";
  client.send(asking_request(), now);
  EXPECT_EQ(kind_of(link.sent.back()), FrameKind::kRequest) << "and sent once";
}

TEST_F(ClientTest, AGoneEngineIsDownAtOnce) {
  client.send(asking_request(), now);
  link.incoming.push_back(encode_frame(FrameKind::kGone, kEpoch));
  client.receive(now);
  EXPECT_EQ(client.update(now), DraftClient::State::kDown);
}

TEST_F(ClientTest, ANewLifeIsTakenWithItsHelloAndBeginsAnew) {
  for (int i = 0; i < 60; ++i) answer_in(10);
  client.send(asking_request(), now);
  link.incoming.push_back(encode_frame(FrameKind::kGone, kEpoch));
  client.receive(now);
  EXPECT_EQ(client.state(), DraftClient::State::kDown);
  EXPECT_EQ(client.num_lives(), 0u);
  link.incoming.push_back(encode_frame(FrameKind::kHello, kEpoch + 1));
  client.receive(now);
  EXPECT_EQ(client.state(), DraftClient::State::kIdle) << "what was asked died with the one before";
  EXPECT_EQ(client.num_lives(), 1u);
  now += ms(60000);
  EXPECT_NE(client.update(now), DraftClient::State::kDown) << "nothing is due";
  client.send(asking_request(), now);
  EXPECT_EQ(client.deadline(0.2), now + ms(40)) << "nothing is known of it yet, and it has to read";
  // Who is late from the life before is not heard.
  link.incoming.push_back(reply_to(last_serial(link, kEpoch + 1), kEpoch));
  link.incoming.push_back(encode_frame(FrameKind::kGone, kEpoch));
  EXPECT_TRUE(client.receive(now).empty());
  EXPECT_EQ(client.num_dropped_frames(), 2u);
  EXPECT_NE(client.update(now), DraftClient::State::kDown);
  link.incoming.push_back(reply_to(last_serial(link, kEpoch + 1), kEpoch + 1));
  EXPECT_EQ(client.receive(now).size(), 1u);
}

// Its tokens may come slowly while it reads all texts; whoever is slow for good is waited for.
TEST_F(ClientTest, WhoTakesOverHoldsAStreamUpFor50MsUntilItIsKnownToBeSlow) {
  link.incoming.push_back(encode_frame(FrameKind::kHello, kEpoch + 1));
  client.receive(now);
  for (int round = 0; round < 3; ++round) {
    client.send(asking_request(), now);
    const Clock::time_point sent = now;
    for (int part = 0; part < 4; ++part) {
      now += ms(20);
      EXPECT_LE(client.deadline(0.2), sent + ms(40)) << round;
      link.incoming.push_back(reply_to(last_serial(link, kEpoch + 1), kEpoch + 1));
      client.receive(now);
    }
    client.record_wait(false);
  }
  client.send(asking_request(), now);
  now += ms(20);
  link.incoming.push_back(reply_to(last_serial(link, kEpoch + 1), kEpoch + 1));
  client.receive(now);
  EXPECT_GT(client.deadline(0.2), now + ms(35)) << "twice the time between its parts";
  now += ms(40);
  link.incoming.push_back(reply_to(last_serial(link, kEpoch + 1), kEpoch + 1));
  client.receive(now);
  EXPECT_GT(client.deadline(0.2), now + ms(30)) << "later than 40 ms";
}

// Silence is no slowness: of who took over, answered once and then fell silent a round waits no
// longer than before.
TEST_F(ClientTest, WhoTookOverAndFallsSilentIsNotTakenForSlow) {
  link.incoming.push_back(encode_frame(FrameKind::kHello, kEpoch + 1));
  client.receive(now);
  client.send(asking_request(), now);
  now += ms(30);
  link.incoming.push_back(reply_to(last_serial(link, kEpoch + 1), kEpoch + 1));
  client.receive(now);
  client.record_wait(true);
  for (int round = 0; round < 5; ++round) {
    client.send(asking_request(), now);
    EXPECT_LE(client.deadline(0.2), now + ms(40)) << round;
    EXPECT_EQ(client.skips_wait(), round >= 3);
    now += ms(40);
    client.record_wait(false);
  }
}

TEST_F(ClientTest, AHelloOfALifeThatIsOverIsDropped) {
  link.incoming.push_back(encode_frame(FrameKind::kHello, kEpoch));
  link.incoming.push_back(encode_frame(FrameKind::kHello, kEpoch - 1));
  client.receive(now);
  EXPECT_EQ(client.num_lives(), 0u);
  EXPECT_EQ(client.num_dropped_frames(), 1u);
}

TEST_F(ClientTest, WithoutALinkItIsDownAndNothingIsSent) {
  DraftClient nobody(nullptr, 0);
  nobody.send(asking_request(), now);
  EXPECT_TRUE(nobody.receive(now).empty());
  EXPECT_EQ(nobody.update(now), DraftClient::State::kDown);
  EXPECT_TRUE(nobody.shut_down());
  nobody.attach(&link, kEpoch + 2);
  EXPECT_NE(nobody.update(now), DraftClient::State::kDown);
  nobody.send(asking_request(), now);
  last_serial(link, kEpoch + 2);
  link.closed = true;
  nobody.receive(now);
  EXPECT_EQ(nobody.update(now), DraftClient::State::kDown);
}

TEST_F(ClientTest, AliveFramesKeepALongAnswerUp) {
  client.send(asking_request(), now);
  for (int i = 0; i < 20; ++i) {
    now += ms(200);
    link.incoming.push_back(encode_frame(FrameKind::kAlive, kEpoch));
    EXPECT_TRUE(client.receive(now).empty());
    EXPECT_NE(client.update(now), DraftClient::State::kDown);
  }
}

TEST_F(ClientTest, DamagedAndStaleFramesAreDropped) {
  client.send(asking_request(), now);
  Bytes damaged = reply_to(1);
  damaged.back() ^= std::byte{1};
  link.incoming.push_back(damaged);
  link.incoming.push_back(reply_to(1, kEpoch + 1));
  link.incoming.push_back(Bytes(3));
  link.incoming.push_back(
      encode_frame({.kind = FrameKind::kReply, .epoch = kEpoch, .payload = Bytes(2)}));
  EXPECT_TRUE(client.receive(now).empty());
  EXPECT_EQ(client.num_dropped_frames(), 4u);
}

TEST_F(ClientTest, AFloodIsTakenBitByBit) {
  for (int i = 0; i < 100000; ++i) link.incoming.push_back(Bytes(1));
  client.receive(now);
  EXPECT_LE(client.num_dropped_frames(), 1000u);
  EXPECT_GT(client.num_dropped_frames(), 0u);
}

TEST_F(ClientTest, NothingIsQueuedForADraftThatTakesNothing) {
  link.num_unsent = 2 << 20;
  client.send(asking_request(), now);
  EXPECT_TRUE(link.sent.empty());
}

TEST(DraftClient, APatientOneWaitsHoweverOftenABlockCameLate) {
  ScriptedLink link;
  DraftClient client(&link, kEpoch, 2.0);
  Clock::time_point now{};
  for (int round = 0; round < 20; ++round) {
    now += ms(100);
    client.send(asking_request(), now);
    EXPECT_EQ(client.deadline(0), now + ms(2000)) << round;
    client.record_wait(false);
    EXPECT_NE(client.update(now), DraftClient::State::kDown);
  }
  EXPECT_EQ(client.update(now + ms(200)), DraftClient::State::kDown);  // silent for 2.1 s
}

}  // namespace
}  // namespace outrider
