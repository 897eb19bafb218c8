// The recorder of --trace: what spans leave in the ring, bounded memory, nothing when it is off.
#include "runtime/base/telemetry/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

namespace outrider {
namespace {

TEST(Trace, SpansNestAndCarryTheirArguments) {
  TraceRing ring(16);
  {
    ThreadTrace recording(&ring);
    TraceSpan round(TraceKind::kRound, {7, 10});
    { TraceSpan forward(TraceKind::kForward, {10, 2}); }
    trace_sequence(TraceKind::kDrafted, 42, {3, 100, -1, 5});
    round.set({7, 11});
  }
  TraceSpan nobody_hears(TraceKind::kPlan);
  const std::vector<TraceEvent> events = ring.events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, TraceKind::kForward);
  EXPECT_EQ(events[1].kind, TraceKind::kDrafted);
  EXPECT_EQ(events[1].id, 42u);
  EXPECT_EQ(events[1].arguments[2], -1);
  EXPECT_EQ(events[2].kind, TraceKind::kRound);
  EXPECT_EQ(events[2].arguments[1], 11);
  EXPECT_LE(events[2].begin_ns, events[0].begin_ns);
  EXPECT_GE(events[2].begin_ns + events[2].duration_ns, events[0].begin_ns + events[0].duration_ns);
  EXPECT_GE(events[0].duration_ns, 0);
}

TEST(Trace, AFullRingKeepsTheNewest) {
  TraceRing ring(4);
  ThreadTrace recording(&ring);
  for (int i = 0; i < 11; ++i) trace_sequence(TraceKind::kBlockStale, 1, {i, 0});
  const std::vector<TraceEvent> events = ring.events();
  ASSERT_EQ(events.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(events[static_cast<size_t>(i)].arguments[0], 7 + i);
  EXPECT_EQ(ring.num_lost(), 7u);
}

TEST(Trace, EachThreadHasItsOwnRing) {
  TraceRing ring(4);
  TraceRing other(4);
  ThreadTrace recording(&ring);
  std::thread thread([&] {
    TraceSpan lost(TraceKind::kPlan);
    ThreadTrace own(&other);
    TraceSpan kept(TraceKind::kForward);
  });
  thread.join();
  {
    ThreadTrace off(nullptr);
    TraceSpan nothing(TraceKind::kApply);
  }
  EXPECT_TRUE(ring.events().empty());
  ASSERT_EQ(other.events().size(), 1u);
  EXPECT_EQ(other.events()[0].kind, TraceKind::kForward);
}

TEST(Trace, EveryKindHasItsOwnName) {
  std::set<std::string> names;
  for (size_t kind = 0; kind < kNumTraceKinds; ++kind) {
    names.insert(text_of(static_cast<TraceKind>(kind)).name);
  }
  EXPECT_EQ(names.size(), kNumTraceKinds);
  EXPECT_STREQ(text_of(TraceKind::kFlowIn).name, "flow in");
  EXPECT_STREQ(text_of(TraceKind::kVerification).arguments[4], "source");
}

TEST(Trace, ArrowsOfDifferentThingsDiffer) {
  std::set<uint64_t> names;
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
    for (uint32_t round = 0; round < 4; ++round) {
      for (int32_t guess = -1; guess < 3; ++guess) {
        for (int32_t first = 0; first < 3; ++first) {
          names.insert(tokens_arrow({sequence, round, 10, guess, first}));
        }
      }
    }
  }
  EXPECT_EQ(names.size(), 4u * 4 * 4 * 3);
  for (uint64_t serial = 1; serial <= 100; ++serial) names.insert(request_arrow(serial));
  EXPECT_EQ(names.size(), 4u * 4 * 4 * 3 + 100);
}

}  // namespace
}  // namespace outrider
