// What a round takes from the heap on rank 0 does not grow with its sequences and tokens.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "models/simulated/simulated.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/target.h"
#include "scheduler/batching/planner.h"
#include "scheduler/pacing/speculation.h"

namespace {

uint64_t num_allocations = 0;  // of this binary, which has one thread

}  // namespace

// Not inlined: GCC would see new memory freed.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace outrider::test {
namespace {

constexpr int32_t kDraftLen = 4;
constexpr int32_t kNumPrompt = 60;

// A coordinator's rounds by hand, with the draft's replies as they come over the wire.
class Rounds {
 public:
  Rounds(uint64_t num_sequences, VerifyMode mode)
      : planner_({.num_blocks = 640,
                  .max_num_seqs = 64,
                  .max_num_batched_tokens = 4096,
                  .max_model_len = 256,
                  .enable_prefix_caching = false,
                  .draft_method = DraftMethod::kDraftModel,
                  .num_speculative_tokens = kDraftLen}),
        target_(model_, *group_) {
    for (uint64_t id = 1; id <= num_sequences; ++id) {
      Request request{.id = id, .prompt = std::vector<int32_t>(kNumPrompt, 300)};
      request.params.max_tokens = 150;
      request.params.temperature = mode == VerifyMode::kAuto ? 0.0f : 1.0f;
      request.params.verify_mode = mode;
      request.params.noise_seed = id;
      request.params.fixed_draft_len = true;
      request.params.async_drafting = AsyncDrafting::kOff;
      request.stream = std::make_shared<ResultStream>();
      streams_.push_back(request.stream);
      planner_.add(std::move(request));
    }
  }

  // Allocations of a round, without the draft's and the reader's.
  uint64_t step() {
    const uint64_t before = num_allocations;
    planner_.set_draft_lens(speculation_.choose(planner_.draft_state()).sequences);
    const DraftRequest request = planner_.take_draft_request();
    uint64_t not_ours = num_allocations;
    const Bytes frame =
        encode_frame({.kind = FrameKind::kReply, .payload = encode(answer(request))});
    not_ours = num_allocations - not_ours;
    Frame reply;
    EXPECT_TRUE(decode_frame(frame, &reply));
    for (const PackedBlock& block : decode_draft_reply(std::move(reply.payload)).blocks)
      num_taken += planner_.offer(block) ? 1 : 0;
    target_.begin(planner_.plan());
    target_.prepare();
    const RoundDecision decision = target_.finish();
    for (PendingResult& result : planner_.decide(target_.plan(), decision))
      std::move(result).deliver();
    for (const SequencePlan& planned : target_.plan().sequences)
      num_drafted += planned.draft.size();
    planner_.recycle(target_.take_plan());
    const uint64_t taken = num_allocations - before - not_ours;
    for (const auto& stream : streams_)
      while (stream->wait_next(std::chrono::milliseconds(0))) ++num_events;
    return taken;
  }

  size_t num_taken = 0;    // blocks
  size_t num_drafted = 0;  // tokens
  size_t num_events = 0;

 private:
  // Tokens that the target never says (models/simulated/law.h): all texts grow alike.
  static DraftReply answer(const DraftRequest& request) {
    DraftReply reply;
    for (const DraftCommit& commit : request.commits) {
      DraftBlock& block = reply.blocks.emplace_back();
      block.sequence_id = commit.sequence_id;
      block.round = commit.round;
      block.base_len = commit.num_tokens_before + static_cast<int32_t>(commit.tokens.size());
      for (int32_t i = 0; i < commit.draft_len; ++i)
        block.tokens.push_back({3 + i, {{3 + i, 0.75f}, {7, 0.25f}}});
    }
    return reply;
  }

  const SimulatedSpec spec_ = parse_simulated("sim:step_ms=0");
  SimulatedModel model_{
      spec_,
      SimulatedRole::kTarget,
      shard_model(simulated_config(spec_), 0, 1),
      {.block_size = 16, .num_blocks = 640, .max_rows = 4096, .max_logit_rows = 4096}};
  std::unique_ptr<TargetGroup> group_ = make_solo_group();
  Planner planner_;
  TargetRank target_;
  Speculation speculation_{{.longest_draft_len = kDraftLen, .has_worker = true}};
  std::vector<std::shared_ptr<ResultStream>> streams_;
};

// Of twenty rounds in which no text and no block table comes to the end of its memory.
std::vector<uint64_t> steady_rounds(uint64_t num_sequences, VerifyMode mode) {
  Rounds rounds(num_sequences, mode);
  for (int i = 0; i < 15; ++i) rounds.step();
  const size_t num_before = rounds.num_drafted;
  std::vector<uint64_t> taken;
  for (int i = 0; i < 20; ++i) taken.push_back(rounds.step());
  EXPECT_EQ(rounds.num_drafted - num_before, 20 * num_sequences * kDraftLen);
  EXPECT_EQ(rounds.num_taken, 34 * num_sequences);
  EXPECT_EQ(rounds.num_events, 35 * num_sequences);
  return taken;
}

TEST(RoundHeap, DoesNotGrowWithSequences) {
  for (const VerifyMode mode : {VerifyMode::kAuto, VerifyMode::kStandard, VerifyMode::kBlock}) {
    const std::vector<uint64_t> few = steady_rounds(8, mode);
    EXPECT_EQ(steady_rounds(64, mode), few);
    for (const uint64_t taken : few) EXPECT_LT(taken, 100u);
  }
}

}  // namespace
}  // namespace outrider::test
