// See round_wire.h.
#include "runtime/ranks/messages/round_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace outrider {

void fields_of(auto& wire, Is<Grammar> auto& grammar) {
  wire.fields(grammar.kind, grammar.text, grammar.end_token_ids);
  wire.fields(grammar.reasoning.begin, grammar.reasoning.end, grammar.reasoning.is_begun);
}

static void fields_of(WireWriter& out, const std::shared_ptr<const Grammar>& grammar) {
  out.put(*grammar);
}

static void fields_of(WireReader& in, std::shared_ptr<const Grammar>& grammar) {
  grammar = std::make_shared<const Grammar>(in.get<Grammar>());
}

static void fields_of(WireWriter& out, const std::optional<uint64_t>& seed) {
  out.fields(seed.has_value(), seed.value_or(0));
}

static void fields_of(WireReader& in, std::optional<uint64_t>& seed) {
  const bool has_seed = in.get<bool>();
  const auto value = in.get<uint64_t>();
  if (has_seed) seed = value;
}

void fields_of(auto& wire, Is<std::pair<int32_t, float>> auto& bias) {
  wire.fields(bias.first, bias.second);
}

void fields_of(auto& wire, Is<SamplingParams> auto& params) {
  wire.fields(params.temperature, params.top_p, params.top_k, params.min_p, params.typical_p);
  wire.fields(params.repetition_penalty, params.presence_penalty, params.frequency_penalty);
  wire.fields(params.logit_bias, params.allowed_token_ids, params.bad_words);
  bool has_grammar = params.grammar != nullptr;
  wire.fields(has_grammar);
  if (has_grammar) wire.fields(params.grammar);
  wire.fields(params.seed, params.noise_seed, params.max_tokens, params.min_tokens);
  wire.fields(params.stop_token_ids, params.num_logprobs, params.prompt_logprobs);
  wire.fields(params.verify_mode, params.max_draft_len, params.fixed_draft_len);
  wire.fields(params.async_drafting);
}

// Of a plan: the candidates follow it.
void fields_of(auto& wire, Is<DraftToken> auto& draft) { wire.fields(draft.token); }

static void fields_of(WireWriter& out, const std::optional<DraftToken>& draft) {
  out.put(draft.has_value());
  if (draft) out.put(*draft);
}

static void fields_of(WireReader& in, std::optional<DraftToken>& draft) {
  if (in.get<bool>()) draft = in.get<DraftToken>();
}

void fields_of(auto& wire, Is<SequencePlan> auto& plan) {
  wire.fields(plan.sequence_id, plan.round, plan.first_position, plan.num_committed_rows);
  wire.fields(plan.draft, plan.bonus_draft, plan.replace_blocks, plan.new_blocks);
}

void fields_of(auto& wire, Is<SequenceStart> auto& start) {
  wire.fields(start.sequence_id, start.params, start.tokens, start.num_output_tokens);
}

void fields_of(auto& wire, Is<RoundPlan> auto& plan) {
  wire.fields(plan.round, plan.shutdown, plan.ends, plan.starts, plan.sequences);
  wire.fields(plan.candidates_follow, plan.awaits_bonus_drafts, plan.num_probe_rows);
  wire.fields(plan.grammars, plan.freed);
}

void fields_of(auto& wire, Is<LateDraftToken> auto& late) {
  static_assert(sizeof(DraftCandidate) == 8);  // no padding
  wire.fields(late.sequence_id, late.token.token, late.token.candidates);
}

void fields_of(auto& wire, Is<LateDraftTokens> auto& late_tokens) {
  wire.fields(late_tokens.round, late_tokens.bonus_drafts);
}

void fields_of(auto& wire, Is<DraftCommit> auto& commit) {
  wire.fields(commit.sequence_id, commit.round, commit.num_tokens_before, commit.tokens);
  wire.fields(commit.draft_len, commit.in_flight);
}

void fields_of(auto& wire, Is<DraftRequest> auto& request) {
  wire.fields(request.serial, request.closes, request.opens, request.commits);
}

// A block is packed where it arrives.
static void fields_of(WireWriter& out, const DraftBlock& block) {
  out.fields(block.sequence_id, block.round, block.base_len, block.guess, block.first);
  size_t num_bytes = 0;
  for (const DraftToken& token : block.tokens)
    num_bytes += PackedTokens::kLeastTokenBytes + token.candidates.size() * sizeof(DraftCandidate);
  out.fields(static_cast<uint32_t>(block.tokens.size()), static_cast<uint32_t>(num_bytes));
  for (const DraftToken& token : block.tokens) out.fields(token.token, token.candidates);
}

static void fields_of(WireReader& in, PackedBlock& block) {
  in.fields(block.sequence_id, block.round, block.base_len, block.guess, block.first);
  const auto num_tokens = in.get<uint32_t>();
  const std::span<const std::byte> tokens = in.get_bytes();
  if (num_tokens > tokens.size() / PackedTokens::kLeastTokenBytes)
    throw Error("a draft block has fewer tokens than it says");
  block.tokens = {num_tokens, tokens};
}

template <typename T>
requires Is<T, DraftReply> || Is<T, PackedReply>
void fields_of(auto& wire, T& reply) {
  wire.fields(reply.serial, reply.step_time_us, reply.num_steps, reply.blocks);
  wire.fields(reply.num_rows, reply.idle_us);
}

namespace {

constexpr uint32_t kPlanMagic = 0x4e4c504f;                        // "OPLN"
constexpr uint32_t kCandidatesMagic = 0x444e434f;                  // "OCND"
constexpr uint32_t kLateDraftTokensMagic = 0x444d414f;             // "OAMD"
constexpr uint32_t kFrameMagic = 0x4d52464f;                       // "OFRM"
constexpr uint32_t kMostSteps = 1 << 24;                           // since the last reply
constexpr uint64_t kMostStepUs = 1'000'000ull * 3600;              // since the last reply
constexpr uint64_t kMostIdleUs = 1'000'000ull * 3600 * 24 * 3650;  // a job's life

// FNV-1a's step over words of eight bytes, the last one filled up with zeros: cheap, and enough
// against a cut or garbled frame (the link is not an adversary's). Kind and epoch are covered: a
// hello with a wrong epoch would make all that follows stale.
uint64_t checksum(const Frame& frame) {
  const Bytes& bytes = frame.payload;
  const uint64_t head = uint64_t{frame.epoch} << 8 | static_cast<uint8_t>(frame.kind);
  uint64_t hash = (0xcbf29ce484222325ull ^ head) * 0x100000001b3ull ^ bytes.size();
  for (size_t begin = 0; begin < bytes.size(); begin += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + begin, std::min(sizeof(word), bytes.size() - begin));
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return hash;
}

// In the plan's order of draft tokens, each sequence's bonus draft token behind them.
void list_candidates(auto& wire, Is<RoundPlan> auto& plan) {
  for (auto& sequence : plan.sequences) {
    for (auto& token : sequence.draft) wire.fields(token.candidates);
    if (sequence.bonus_draft) wire.fields(sequence.bonus_draft->candidates);
  }
}

template <typename Message>
Message decode_whole(WireReader& in) {
  auto message = in.get<Message>();
  in.expect_end();
  return message;
}

}  // namespace

Bytes encode(const RoundPlan& plan) { return wire_bytes(kPlanMagic, plan); }

RoundPlan decode_round_plan(const Bytes& bytes) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kPlanMagic) throw Error("a round plan does not begin as one");
  return decode_whole<RoundPlan>(in);
}

bool has_candidates(const RoundPlan& plan) {
  const auto lists = [](const DraftToken& token) { return !token.candidates.empty(); };
  return std::any_of(plan.sequences.begin(), plan.sequences.end(), [&](const SequencePlan& one) {
    return (one.bonus_draft && lists(*one.bonus_draft)) || std::ranges::any_of(one.draft, lists);
  });
}

Bytes encode_candidates(const RoundPlan& plan) {
  WireWriter out;
  out.fields(kCandidatesMagic, plan.round);
  list_candidates(out, plan);
  return out.take();
}

void decode_candidates(const Bytes& bytes, RoundPlan& plan) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kCandidatesMagic)
    throw Error("the candidates of a round do not begin as such");
  if (in.get<uint64_t>() != plan.round)
    throw Error(fmt::format("the candidates of round {} are not the next message", plan.round));
  list_candidates(in, plan);
  in.expect_end();
}

Bytes encode(const LateDraftTokens& late_tokens) {
  return wire_bytes(kLateDraftTokensMagic, late_tokens);
}

LateDraftTokens decode_late_draft_tokens(const Bytes& bytes) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kLateDraftTokensMagic)
    throw Error("the late_tokens of a round does not begin as one");
  return decode_whole<LateDraftTokens>(in);
}

Bytes encode_frame(const Frame& frame) {
  return wire_bytes(
      kFrameMagic, kDraftLinkVersion, frame.kind, frame.epoch, checksum(frame), frame.payload);
}

Bytes encode_frame(FrameKind kind, uint32_t epoch) {
  return encode_frame({.kind = kind, .epoch = epoch, .payload = {}});
}

bool decode_frame(const Bytes& bytes, Frame* frame) {
  constexpr size_t kHeaderBytes = 4 + 2 + 1 + 4 + 8 + 4;
  if (bytes.size() < kHeaderBytes || bytes.size() > kMaxFrameBytes) return false;
  WireReader in(bytes);
  if (in.get<uint32_t>() != kFrameMagic || in.get<uint16_t>() != kDraftLinkVersion) return false;
  frame->kind = in.get<FrameKind>();
  frame->epoch = in.get<uint32_t>();
  const auto sum = in.get<uint64_t>();
  const auto length = in.get<uint32_t>();
  if (bytes.size() != kHeaderBytes + length) return false;
  frame->payload.assign(bytes.begin() + kHeaderBytes, bytes.end());
  return checksum(*frame) == sum;
}

bool decode_frame(const Bytes& bytes, uint32_t epoch, Frame* frame) {
  return decode_frame(bytes, frame) && frame->epoch == epoch;
}

Bytes encode(const DraftRequest& request) { return wire_bytes(request); }

DraftRequest decode_draft_request(const Bytes& bytes) {
  WireReader in(bytes);
  return decode_whole<DraftRequest>(in);
}

Bytes encode(const DraftReply& reply) { return wire_bytes(reply); }

PackedReply decode_draft_reply(Bytes bytes) {
  WireReader in(bytes);
  auto reply = decode_whole<PackedReply>(in);
  // What is reckoned with these would be no time any more.
  if (reply.num_steps > kMostSteps || reply.num_rows > kMostSteps)
    throw Error(fmt::format("a draft reply tells of {} steps with {} rows, which cannot be",
                            reply.num_steps,
                            reply.num_rows));
  if (reply.step_time_us > kMostStepUs || reply.idle_us > kMostIdleUs)
    throw Error(
        fmt::format("a draft reply tells of {} us at work and {} us idle, which is too long",
                    reply.step_time_us,
                    reply.idle_us));
  reply.message = std::move(bytes);
  return reply;
}

}  // namespace outrider
