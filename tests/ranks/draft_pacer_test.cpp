// What the coordinator hears of the draft while the target's device computes.
#include "runtime/ranks/coordinator/draft_pacer.h"

#include <gtest/gtest.h>

#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr uint32_t kEpoch = 3;
constexpr auto kStep = std::chrono::milliseconds(10);

// Rank 0's side of a draft on rank 1.
struct Pacing {
  const RankLayout layout{1, true};
  ServingMetrics metrics{"test", 64, 4};
  RoundAccount account{metrics};
  PlannerConfig config{.num_blocks = 64,
                       .max_num_seqs = 64,
                       .max_model_len = 64,
                       .draft_method = DraftMethod::kDraftModel};
  Planner planner{config};
  DraftPacer pacer;
  Pacing(World& world, bool drafts_async)
      : pacer({.world = world,
               .layout = layout,
               .planner = planner,
               .config = config,
               .account = account,
               .epoch = kEpoch,
               .drafts_async = drafts_async}) {}
};

void run_coordinator(World& world) {
  Pacing pacing(world, true);
  DraftPacer& pacer = pacing.pacer;
  // Nothing comes before it is asked for.
  pacer.listen_until(JobClock::now() + kStep);
  EXPECT_EQ(pacer.client()->num_received_bytes(), 0u);
  world.post(1, Bytes(1));
  // A test that hangs has failed: whatever comes is taken during steps, with nobody else asking.
  while (pacer.client()->num_received_bytes() == 0) pacer.listen_until(JobClock::now() + kStep);
  EXPECT_EQ(pacing.account.totals().draft_busy_s, 0.25);
}

void run_draft(World& world) {
  receive(world, 0, 1);
  DraftReply reply;
  reply.num_steps = 1;
  reply.step_time_us = 250000;
  world.post(0,
             encode_frame({.kind = FrameKind::kReply, .epoch = kEpoch, .payload = encode(reply)}));
}

TEST(DraftPacer, HearsTheDraftWhileTheDeviceComputes) {
  run_in_process(2, [&](World& world) {
    if (world.rank() == 0) {
      run_coordinator(world);
    } else {
      run_draft(world);
    }
  });
}

Request request_of(uint64_t id) {
  Request request;
  request.id = id;
  request.prompt = {1, 2, 3};
  request.params.max_tokens = 16;
  return request;
}

// Rank 0 begins a round of num_requests that came while nothing ran. row_s: what each row of a step
// takes, beside 1 s. True when the draft, which works in turns with the targets, is told to read
// their prompts.
bool reads_prompts_of(int32_t num_requests, double row_s) {
  bool is_told = false;
  run_in_process(2, [&](World& world) {
    if (world.rank() == 1) {
      is_told = receive(world, 0, 1) != Bytes(1);
      return;
    }
    Pacing pacing(world, false);
    DraftPacer& pacer = pacing.pacer;
    for (const int32_t rows : {1, 16, 256})
      pacer.record_probe({{.num_rows = rows}, 1 + row_s * rows});
    for (int32_t i = 0; i < num_requests; ++i)
      pacing.planner.add(request_of(1 + static_cast<uint64_t>(i)));
    pacer.record_arrivals();
    pacer.wait_for_blocks();
    EXPECT_EQ(std::ssize(pacing.planner.plan().sequences), num_requests);
    pacer.tell_begun();
    world.post(1, Bytes(1));
  });
  return is_told;
}

TEST(DraftPacer, ADraftThatIsToRestReadsNoPrompts) {
  EXPECT_TRUE(reads_prompts_of(2, 1));
  EXPECT_FALSE(reads_prompts_of(32, 1));
  EXPECT_TRUE(reads_prompts_of(32, 0.01)) << "rows that cost little, as on GPUs";
}

}  // namespace
}  // namespace outrider
