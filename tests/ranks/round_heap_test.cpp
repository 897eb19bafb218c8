// What a round with a draft model takes from the heap on rank 0 does not grow with its sequences
// and tokens, whatever changes or filters their logits. Log-probabilities are lists that leave with
// the tokens. What prepared blocks keep is bounded.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "models/simulated/simulated.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/target.h"
#include "scheduler/batching/planner.h"
#include "scheduler/pacing/speculation.h"

namespace {

// Of this binary, which has one thread.
uint64_t num_allocations = 0;
size_t live_bytes = 0;

}  // namespace

// Not inlined: GCC would see new memory freed.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  void* const memory = std::malloc(size);
  live_bytes += malloc_usable_size(memory);
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* const memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace outrider::test {
namespace {

constexpr int32_t kDraftLen = 4;
constexpr int32_t kNumPrompt = 60;

// A coordinator's rounds by hand, with the draft's replies as they come over the wire.
class Rounds {
 public:
  Rounds(uint64_t num_sequences, const SamplingParams& params)
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
      request.params = params;
      request.params.max_tokens = 150;
      request.params.noise_seed = id;
      request.params.fixed_draft_len = true;
      request.stream = std::make_shared<ResultStream>();
      streams_.push_back(request.stream);
      planner_.add(std::move(request));
    }
  }

  // Allocations of a round, without the draft's and the reader's.
  uint64_t step() {
    const uint64_t before = num_allocations;
    not_ours_ = 0;
    planner_.set_draft_lens(speculation_.choose(planner_.draft_state()).sequences);
    take(answer(planner_.take_draft_request()));
    target_.begin(planner_.plan());
    const DraftRequest begun = planner_.take_draft_request(false);
    target_.prepare();
    if (target_.awaits_bonus_drafts())
      target_.add_late_tokens({0, planner_.late_draft_tokens(target_.plan())});
    const RoundDecision decision = target_.finish();
    take(prepared(begun, decision));
    for (PendingResult& result : planner_.decide(target_.plan(), decision))
      std::move(result).deliver();
    for (const SequencePlan& planned : target_.plan().sequences)
      num_drafted += planned.draft.size();
    planner_.recycle(target_.take_plan());
    const uint64_t taken = num_allocations - before - not_ours_;
    for (const auto& stream : streams_)
      while (stream->wait_next(std::chrono::milliseconds(0))) ++num_events;
    return taken;
  }
  uint64_t num_hits() const { return planner_.draft_counters().num_hits; }

  size_t num_taken = 0;    // blocks
  size_t num_drafted = 0;  // tokens
  size_t num_events = 0;

 private:
  void take(const DraftReply& reply) {
    const uint64_t before = num_allocations;
    const Bytes frame = encode_frame({.kind = FrameKind::kReply, .payload = encode(reply)});
    not_ours_ += num_allocations - before;
    Frame read;
    EXPECT_TRUE(decode_frame(frame, &read));
    for (const PackedBlock& block : decode_draft_reply(std::move(read.payload)).blocks)
      num_taken += planner_.offer(block) ? 1 : 0;
  }

  // Tokens that the target never says (models/simulated/law.h): all texts grow alike.
  static void add_tokens(DraftBlock& block) {
    for (int32_t i = 0; i < kDraftLen; ++i)
      block.tokens.push_back({3 + i, {{3 + i, 0.75f}, {7, 0.25f}}});
  }

  DraftReply answer(const DraftRequest& request) {
    const uint64_t before = num_allocations;
    DraftReply reply;
    for (const DraftCommit& commit : request.commits) {
      DraftBlock& block = reply.blocks.emplace_back();
      block.sequence_id = commit.sequence_id;
      block.round = commit.round;
      block.base_len = commit.num_tokens_before + static_cast<int32_t>(commit.tokens.size());
      if (commit.draft_len > 0) add_tokens(block);
    }
    not_ours_ += num_allocations - before;
    return reply;
  }

  // For the outcome that comes, and one that does not. Asynchronous drafting alone begins rounds.
  DraftReply prepared(const DraftRequest& begun, const RoundDecision& decision) {
    const uint64_t before = num_allocations;
    DraftReply reply;
    for (const DraftCommit& commit : begun.commits) {
      for (const int32_t offset : {0, 1}) {
        DraftBlock& block = reply.blocks.emplace_back();
        block.sequence_id = commit.sequence_id;
        block.round = commit.round + 1;
        block.base_len = commit.num_tokens_before + static_cast<int32_t>(commit.tokens.size()) + 1;
        block.guess = decision.sequences[commit.sequence_id - 1].next_token + offset;
        add_tokens(block);
      }
    }
    not_ours_ += num_allocations - before;
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
  uint64_t not_ours_ = 0;
};

// Of twenty rounds in which no text and no block table outgrows its memory (a vector's doubles).
std::vector<uint64_t> steady_rounds(uint64_t num_sequences, const SamplingParams& params) {
  Rounds rounds(num_sequences, params);
  for (int i = 0; i < 15; ++i) rounds.step();
  const size_t num_drafted = rounds.num_drafted;
  const uint64_t num_hits = rounds.num_hits();
  std::vector<uint64_t> taken;
  for (int i = 0; i < 20; ++i) taken.push_back(rounds.step());
  const bool prepares = params.async_drafting == AsyncDrafting::kCache;
  EXPECT_EQ(rounds.num_drafted - num_drafted, 20 * num_sequences * kDraftLen);
  EXPECT_EQ(rounds.num_hits() - num_hits, prepares ? 20 * num_sequences : 0);
  EXPECT_GE(rounds.num_taken, (prepares ? 68 : 34) * num_sequences);
  EXPECT_EQ(rounds.num_events, 35 * num_sequences);
  return taken;
}

// num_growing: of the rounds, those in which what is kept of all sequences outgrows its memory.
void expect_same_whatever_the_number(const SamplingParams& params, size_t num_growing = 0) {
  std::vector<uint64_t> few = steady_rounds(8, params);
  std::vector<uint64_t> many = steady_rounds(64, params);
  for (std::vector<uint64_t>* taken : {&few, &many}) {
    std::ranges::sort(*taken);
    taken->resize(taken->size() - num_growing);
  }
  EXPECT_EQ(many, few);
  for (const uint64_t taken : few) EXPECT_LT(taken, 100u);
}

TEST(RoundHeap, DoesNotGrowWithSequences) {
  for (const AsyncDrafting async : {AsyncDrafting::kOff, AsyncDrafting::kCache}) {
    expect_same_whatever_the_number({.temperature = 0.0f, .async_drafting = async});
    for (const VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock}) {
      expect_same_whatever_the_number({.verify_mode = mode, .async_drafting = async});
    }
  }
}

// The simulated model has few values, and says none of these tokens: now they lie below its words.
std::vector<std::pair<int32_t, float>> many_values() {
  std::vector<std::pair<int32_t, float>> bias;
  for (int32_t i = 0; i < 200; ++i)
    bias.emplace_back(1000 + i, 95.0f + 0.01f * static_cast<float>(i));
  return bias;
}

TEST(RoundHeap, FiltersPenaltiesAndMasksDoNotGrowWithSequences) {
  struct Change {
    const char* name;
    void (*apply)(SamplingParams&);
    size_t num_growing = 0;
  };
  const Change changes[] = {
      {"top_k", [](SamplingParams& params) { params.top_k = 40; }},
      {"top_p", [](SamplingParams& params) { params.top_p = 0.9f; }},
      {"min_p", [](SamplingParams& params) { params.min_p = 0.1f; }},
      {"typical_p", [](SamplingParams& params) { params.typical_p = 0.9f; }},
      // More tokens than the shards tell each other at once.
      {"wide top_k", [](SamplingParams& params) { params.top_k = 400; }},
      {"wide top_p",
       [](SamplingParams& params) {
         params.logit_bias = many_values();
         params.top_p = 0.99f;
       },
       1},
      {"wide typical_p",
       [](SamplingParams& params) {
         params.logit_bias = many_values();
         params.typical_p = 0.99f;
       },
       1},
      {"repetition", [](SamplingParams& params) { params.repetition_penalty = 1.1f; }, 3},
      {"presence", [](SamplingParams& params) { params.presence_penalty = 0.5f; }, 4},
      {"bias",
       [](SamplingParams& params) {
         params.logit_bias = {{3, -2.0f}, {900, 1.0f}};
       }},
      {"min_tokens",
       [](SamplingParams& params) {
         params.min_tokens = 150;
         params.stop_token_ids = {5};
       }},
      {"allowed",
       [](SamplingParams& params) {
         params.allowed_token_ids = {7, 300, 301, 302};
       }},
      {"bad_words",
       [](SamplingParams& params) {
         params.bad_words = {{300, 4}, {9}};
       }},
  };
  for (const Change& change : changes) {
    for (const VerifyMode mode :
         {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
      SCOPED_TRACE(fmt::format("{} {}", change.name, static_cast<int>(mode)));
      SamplingParams params{.verify_mode = mode, .async_drafting = AsyncDrafting::kCache};
      change.apply(params);
      expect_same_whatever_the_number(params, change.num_growing);
    }
  }
}

// Whatever the draft sends: here one large block a round, in another place each time.
TEST(RoundHeap, PreparedBlocksKeepNoMoreThanTheirBound) {
  const std::vector<std::byte> large(SpeculationCache::kMaxBytes -
                                     100 * SpeculationCache::kMaxBlocks);
  const std::span<const std::byte> small = std::span(large).first(8);
  SpeculationCache cache;
  const size_t before = live_bytes;
  for (int32_t last = SpeculationCache::kMaxBlocks; last-- > 0;) {
    for (int32_t guess = 0; guess < last; ++guess)
      EXPECT_TRUE(cache.store(5, guess, 0, {1, small}));
    EXPECT_TRUE(cache.store(5, last, 0, {1, large}));
    std::vector<DraftToken> block;
    cache.take(6, 0, block);
  }
  EXPECT_LT(live_bytes - before, 2 * SpeculationCache::kMaxBytes);
}

}  // namespace
}  // namespace outrider::test
