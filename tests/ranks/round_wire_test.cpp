// Plans and draft frames on the wire.
#include "runtime/ranks/messages/round_wire.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler/packed.h"

namespace outrider {
namespace {

SamplingParams some_params(std::mt19937& random) {
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_p = 0.9f;
  params.top_k = static_cast<int32_t>(random() % 50);
  params.min_p = 0.05f;
  params.typical_p = 0.8f;
  params.allowed_token_ids = {1, 4, static_cast<int32_t>(5 + random() % 50)};
  params.bad_words = {{static_cast<int32_t>(random() % 50)}, {1, 2, 3}};
  if (random() % 2 == 0)
    params.grammar = std::make_shared<const Grammar>(
        Grammar{GrammarKind::kRegex, "a+\n", {2, 7}, {{3, 1}, {4}, true}});
  params.repetition_penalty = 1.1f;
  params.presence_penalty = -0.5f;
  params.frequency_penalty = 0.25f;
  params.logit_bias = {{3, -100.0f}, {7, 2.5f}};
  if (random() % 2 == 0) params.seed = random();
  params.noise_seed = (static_cast<uint64_t>(random()) << 32) | random();
  params.max_tokens = 33;
  params.min_tokens = 2;
  params.stop_token_ids = {0, 4};
  params.num_logprobs = 5;
  params.prompt_logprobs = random() % 2 == 0;
  params.verify_mode = VerifyMode::kCoupled;
  params.max_draft_len = 3;
  params.fixed_draft_len = random() % 2 == 0;
  params.async_drafting = random() % 2 == 0 ? AsyncDrafting::kChain : AsyncDrafting::kOff;
  return params;
}

RoundPlan some_plan(uint32_t seed) {
  std::mt19937 random(seed);
  RoundPlan plan;
  plan.round = random();
  plan.shutdown = random() % 5 == 0;
  plan.ends = {random(), random()};
  plan.starts.push_back(
      {random(), some_params(random), {1, 2, 3, static_cast<int32_t>(random() % 1000)}});
  for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
    SequencePlan sequence;
    sequence.sequence_id = random();
    sequence.round = static_cast<uint32_t>(random());
    sequence.first_position = static_cast<int32_t>(random() % 1000);
    sequence.num_committed_rows = 1 + static_cast<int32_t>(random() % 7);
    sequence.draft.push_back({5, {}});
    sequence.draft.push_back({6, {{6, 0.75f}, {9, 0.25f}}});
    if (random() % 2 == 0) sequence.bonus_draft = {8, {{8, 0.5f}, {3, 0.5f}}};
    sequence.replace_blocks = random() % 2 == 0;
    sequence.new_blocks = {static_cast<int32_t>(random() % 100), 7};
    plan.sequences.push_back(sequence);
  }
  plan.candidates_follow = random() % 2 == 0;
  plan.awaits_bonus_drafts = random() % 2 == 0;
  plan.num_probe_rows = static_cast<int32_t>(random() % 9);
  plan.freed = {3, static_cast<int32_t>(random() % 100)};
  plan.grammars = {
      std::make_shared<const Grammar>(Grammar{GrammarKind::kEbnf, "root ::= \"a\"", {4}, {}})};
  return plan;
}

TEST(RoundWire, PlansComeBackAsTheyWere) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const RoundPlan plan = some_plan(seed);
    const Bytes bytes = encode(plan);
    RoundPlan back = decode_round_plan(bytes);
    // Encoding is injective on the fields it writes, so equal bytes are equal plans; the spot
    // checks below keep a field from being left out on both sides.
    EXPECT_EQ(encode(back), bytes);
    EXPECT_EQ(back.round, plan.round);
    EXPECT_EQ(back.shutdown, plan.shutdown);
    EXPECT_EQ(back.ends, plan.ends);
    EXPECT_EQ(back.freed, plan.freed);
    ASSERT_EQ(back.grammars.size(), 1u);
    EXPECT_EQ(*back.grammars[0], *plan.grammars[0]);
    ASSERT_EQ(back.starts.size(), 1u);
    EXPECT_EQ(back.starts[0].tokens, plan.starts[0].tokens);
    const SamplingParams& a = back.starts[0].params;
    const SamplingParams& b = plan.starts[0].params;
    EXPECT_EQ(a.logit_bias, b.logit_bias);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.noise_seed, b.noise_seed);
    EXPECT_EQ(a.stop_token_ids, b.stop_token_ids);
    EXPECT_EQ(a.top_k, b.top_k);
    EXPECT_EQ(a.min_p, b.min_p);
    EXPECT_EQ(a.typical_p, b.typical_p);
    EXPECT_EQ(a.allowed_token_ids, b.allowed_token_ids);
    EXPECT_EQ(a.bad_words, b.bad_words);
    ASSERT_EQ(a.grammar == nullptr, b.grammar == nullptr);
    EXPECT_TRUE(a.grammar == nullptr || *a.grammar == *b.grammar);
    EXPECT_EQ(a.frequency_penalty, b.frequency_penalty);
    EXPECT_EQ(a.min_tokens, b.min_tokens);
    EXPECT_EQ(a.prompt_logprobs, b.prompt_logprobs);
    EXPECT_EQ(a.num_logprobs, b.num_logprobs);
    EXPECT_EQ(a.verify_mode, b.verify_mode);
    EXPECT_EQ(a.fixed_draft_len, b.fixed_draft_len);
    EXPECT_EQ(a.async_drafting, b.async_drafting);
    ASSERT_EQ(back.sequences.size(), plan.sequences.size());
    EXPECT_FALSE(has_candidates(back));
    decode_candidates(encode_candidates(plan), back);
    EXPECT_TRUE(has_candidates(back));
    EXPECT_EQ(encode_candidates(back), encode_candidates(plan));
    EXPECT_EQ(back.sequences[0].draft, plan.sequences[0].draft);
    EXPECT_EQ(back.sequences[0].bonus_draft, plan.sequences[0].bonus_draft);
    EXPECT_EQ(back.candidates_follow, plan.candidates_follow);
    EXPECT_EQ(back.awaits_bonus_drafts, plan.awaits_bonus_drafts);
    EXPECT_EQ(back.num_probe_rows, plan.num_probe_rows);
    EXPECT_EQ(back.sequences[0].new_blocks, plan.sequences[0].new_blocks);
    EXPECT_EQ(back.sequences[0].replace_blocks, plan.sequences[0].replace_blocks);
  }
}

TEST(RoundWire, DamagedPlansAreErrors) {
  const Bytes whole = encode(some_plan(1));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(
        decode_round_plan(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size))),
        Error);
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_round_plan(longer), Error);
  // Flipped bytes may give another plan, but never a crash.
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    Bytes flipped = whole;
    flipped[random() % flipped.size()] ^= std::byte(1 + random() % 255);
    try {
      decode_round_plan(flipped);
    } catch (const Error&) {
    }
  }
}

TEST(RoundWire, DamagedCandidatesAreErrors) {
  const RoundPlan plan = some_plan(1);
  const RoundPlan outline = decode_round_plan(encode(plan));
  const auto decode = [&](const Bytes& bytes) {
    RoundPlan filled = outline;
    decode_candidates(bytes, filled);
  };
  const Bytes whole = encode_candidates(plan);
  EXPECT_NO_THROW(decode(whole));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(decode(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size))), Error);
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode(longer), Error);
  EXPECT_THROW(decode(encode_candidates(some_plan(2))), Error);  // of another round
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    Bytes flipped = whole;
    flipped[random() % flipped.size()] ^= std::byte(1 + random() % 255);
    try {
      decode(flipped);
    } catch (const Error&) {
    }
  }
}

TEST(RoundWire, LateDraftTokensComeBack) {
  LateDraftTokens late_tokens{.round = 12, .bonus_drafts = {}};
  late_tokens.bonus_drafts.push_back({3, {9, {{9, 0.25f}, {1, 0.75f}}}});
  late_tokens.bonus_drafts.push_back({5, {2, {}}});
  const Bytes bytes = encode(late_tokens);
  const LateDraftTokens back = decode_late_draft_tokens(bytes);
  EXPECT_EQ(back.round, 12u);
  ASSERT_EQ(back.bonus_drafts.size(), 2u);
  EXPECT_EQ(back.bonus_drafts[0].sequence_id, 3u);
  EXPECT_EQ(back.bonus_drafts[0].token, late_tokens.bonus_drafts[0].token);
  EXPECT_EQ(back.bonus_drafts[1].token, late_tokens.bonus_drafts[1].token);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_late_draft_tokens(
                     Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size))),
                 Error);
  }
  EXPECT_THROW(decode_late_draft_tokens(encode(some_plan(1))), Error);
}

DraftReply some_reply() {
  DraftReply reply;
  reply.serial = 9;
  reply.step_time_us = 1234;
  reply.num_steps = 4;
  reply.blocks.push_back({11, 2, 40, {{5, {{5, 0.5f}, {6, 0.5f}}}, {7, {}}}});
  reply.blocks.push_back({12, 3, 41, {}, 17, 4});
  reply.num_rows = 8;
  reply.idle_us = 77;
  return reply;
}

TEST(RoundWire, FramesAreTakenWholeOrNotAtAll) {
  const Bytes bytes =
      encode_frame({.kind = FrameKind::kReply, .epoch = 3, .payload = encode(some_reply())});
  Frame frame;
  ASSERT_TRUE(decode_frame(bytes, 3, &frame));
  EXPECT_EQ(frame.kind, FrameKind::kReply);
  const PackedReply reply = decode_draft_reply(frame.payload);
  EXPECT_EQ(reply.serial, 9u);
  EXPECT_EQ(reply.num_steps, 4u);
  ASSERT_EQ(reply.blocks.size(), 2u);
  EXPECT_EQ(testing::unpacked(reply.blocks[0].tokens), some_reply().blocks[0].tokens);
  EXPECT_EQ(reply.blocks[0].guess, -1);
  EXPECT_EQ(reply.blocks[1].base_len, 41);
  EXPECT_EQ(reply.blocks[1].guess, 17);
  EXPECT_EQ(reply.blocks[1].first, 4);
  EXPECT_EQ(reply.num_rows, 8u);
  EXPECT_EQ(reply.idle_us, 77u);

  EXPECT_FALSE(decode_frame(bytes, 4, &frame)) << "of another epoch";
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_frame(
        Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)), 3, &frame));
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    Bytes flipped = bytes;
    flipped[i] ^= std::byte{0x40};
    EXPECT_FALSE(decode_frame(flipped, &frame)) << "byte " << i;
  }
}

// The header is read when a reply comes, tokens when they are wanted: what is wrong in them is
// found then, and what makes no sense of the header at once.
TEST(RoundWire, ABlockOfFewerTokensThanItSaysIsNoReply) {
  constexpr size_t kBeforeCount = 8 + 8 + 4 + 4 + (8 + 4 + 4 + 4 + 4);
  Bytes bytes = encode(some_reply());
  ASSERT_EQ(bytes[kBeforeCount], std::byte{2});
  bytes[kBeforeCount] = std::byte{4};  // 32 bytes hold no more tokens
  EXPECT_EQ(testing::unpacked(decode_draft_reply(bytes).blocks[0].tokens), std::nullopt);
  bytes[kBeforeCount] = std::byte{5};
  EXPECT_THROW(decode_draft_reply(bytes), Error);
}

// With a time that is none nothing would be reckoned right any more.
TEST(RoundWire, AReplyThatTellsOfMoreTimeThanThereIsIsNone) {
  for (uint64_t DraftReply::*const time : {&DraftReply::step_time_us, &DraftReply::idle_us}) {
    DraftReply reply = some_reply();
    reply.*time = 1'000'000ull * 3600;
    EXPECT_NO_THROW(decode_draft_reply(encode(reply)));
    reply.*time = UINT64_MAX / 2;
    EXPECT_THROW(decode_draft_reply(encode(reply)), Error);
  }
}

TEST(RoundWire, AReplyThatTellsOfMoreRowsThanThereAreIsNone) {
  for (uint32_t DraftReply::*const count : {&DraftReply::num_steps, &DraftReply::num_rows}) {
    DraftReply reply = some_reply();
    reply.*count = 1 << 20;
    EXPECT_NO_THROW(decode_draft_reply(encode(reply)));
    reply.*count = UINT32_MAX;  // negative as an int
    EXPECT_THROW(decode_draft_reply(encode(reply)), Error);
  }
}

// The table of docs/round.md, section "Bytes", at draft_len 7: 924 B of tokens and candidates, 28 B
// of tokens alone; around them a list length per token and what does not grow with the draft.
TEST(RoundWire, ADraftBlockHasTheBytesOfTheTable) {
  constexpr size_t kAroundReply = 8 + 8 + 4 + 4 + 4 + 8;
  constexpr size_t kAroundBlock = 8 + 4 + 4 + 4 + 4 + 4 + 4;
  constexpr size_t kListLength = 4;
  DraftReply reply;
  EXPECT_EQ(encode(reply).size(), kAroundReply);
  DraftBlock block{1, 2, 3, {}};
  for (int32_t k = 0; k < 7; ++k) block.tokens.push_back({128000 + k, {}});
  reply.blocks = {block};
  EXPECT_EQ(encode(reply).size(), 28 + 7 * kListLength + kAroundBlock + kAroundReply);
  for (DraftToken& token : reply.blocks[0].tokens) {
    for (int32_t c = 0; c < 16; ++c) token.candidates.push_back({token.token - c, 1.0f / 16});
  }
  EXPECT_EQ(encode(reply).size(), 924 + 7 * kListLength + kAroundBlock + kAroundReply);
}

TEST(RoundWire, DraftRequestsComeBack) {
  std::mt19937 random(5);
  DraftRequest request;
  request.serial = 77;
  request.closes = {1, 2};
  request.opens.push_back({5, some_params(random), {9, 8, 7}, 2});
  request.commits.push_back({6, 4, 10, {1, 2, 3}, 5, 3});
  const DraftRequest back = decode_draft_request(encode(request));
  EXPECT_EQ(back.serial, 77u);
  EXPECT_EQ(back.closes, request.closes);
  ASSERT_EQ(back.opens.size(), 1u);
  EXPECT_EQ(back.opens[0].tokens, request.opens[0].tokens);
  EXPECT_EQ(back.opens[0].num_output_tokens, 2);
  ASSERT_EQ(back.commits.size(), 1u);
  EXPECT_EQ(back.commits[0].round, 4u);
  EXPECT_EQ(back.commits[0].num_tokens_before, 10);
  EXPECT_EQ(back.commits[0].tokens, request.commits[0].tokens);
  EXPECT_EQ(back.commits[0].draft_len, 5);
  EXPECT_EQ(back.commits[0].in_flight, 3);
}

}  // namespace
}  // namespace outrider
