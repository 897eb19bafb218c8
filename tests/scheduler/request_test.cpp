// The stream of a request's results between threads, and the digest of a round's decisions.
#include "scheduler/request.h"

#include <gtest/gtest.h>

#include <thread>

#include "scheduler/round.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

TEST(ResultStream, EventsComeInOrderAndOnce) {
  ResultStream stream;
  EXPECT_FALSE(stream.wait_next(milliseconds(0)).has_value());
  EXPECT_FALSE(stream.wait_next(milliseconds(1)).has_value());
  for (int32_t i = 0; i < 3; ++i) {
    ResultEvent event;
    event.tokens = {i};
    stream.push(std::move(event));
  }
  for (int32_t i = 0; i < 3; ++i) {
    const auto event = stream.wait_next(milliseconds(0));
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->tokens, std::vector<int32_t>{i});
  }
  EXPECT_FALSE(stream.wait_next(milliseconds(0)).has_value());
}

// One that is always some events behind.
TEST(ResultStream, AReaderThatIsLateGetsAll) {
  ResultStream stream;
  int32_t next = 0;
  for (int32_t i = 0; i < 1000; ++i) {
    ResultEvent event;
    event.tokens = {i};
    stream.push(std::move(event));
    if (i - next < 3 + i / 100) continue;
    for (int32_t end = next + 1 + i % 3; next < end; ++next)
      ASSERT_EQ(stream.wait_next(milliseconds(0))->tokens, std::vector<int32_t>{next});
  }
  EXPECT_GT(next, 900);
  EXPECT_LT(next, 1000);
}

TEST(ResultStream, WakesAWaitingReader) {
  ResultStream stream;
  constexpr int kNumEvents = 2000;
  std::thread producer([&] {
    for (int32_t i = 0; i < kNumEvents; ++i) {
      ResultEvent event;
      event.tokens = {i};
      stream.push(std::move(event));
    }
  });
  int num_right = 0;
  for (int32_t i = 0; i < kNumEvents; ++i) {
    const auto event = stream.wait_next(std::chrono::seconds(30));
    if (event.has_value() && event->tokens == std::vector<int32_t>{i}) ++num_right;
  }
  producer.join();
  EXPECT_EQ(num_right, kNumEvents);
}

TEST(Digest, EveryDecidedNumberChangesIt) {
  RoundDecision decision;
  decision.sequences.resize(2);
  decision.sequences[0] = {1, 2, 3, false, {}, {}};
  decision.sequences[1] = {4, 0, 5, false, {}, {}};
  const uint64_t before = digest(7, decision);
  EXPECT_EQ(digest(7, decision), before);
  EXPECT_NE(digest(8, decision), before);
  RoundDecision other = decision;
  other.sequences[0].sequence_id = 9;
  EXPECT_NE(digest(7, other), before);
  other = decision;
  other.sequences[0].num_accepted = 1;
  EXPECT_NE(digest(7, other), before);
  other = decision;
  other.sequences[1].next_token = 6;
  EXPECT_NE(digest(7, other), before);
  other = decision;
  other.sequences[1].failed = true;
  EXPECT_NE(digest(7, other), before);
  other = decision;
  std::swap(other.sequences[0], other.sequences[1]);
  EXPECT_NE(digest(7, other), before);
}

TEST(VerifyModes, NamesComeBack) {
  for (VerifyMode mode :
       {VerifyMode::kAuto, VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    EXPECT_EQ(verify_mode_from_name(verify_mode_name(mode)), mode);
  }
  EXPECT_EQ(verify_mode_from_name("block"), VerifyMode::kBlock);
  EXPECT_FALSE(verify_mode_from_name("Block").has_value());
  EXPECT_FALSE(verify_mode_from_name("").has_value());
}

}  // namespace
}  // namespace outrider
