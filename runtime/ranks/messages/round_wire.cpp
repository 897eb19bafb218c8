// See round_wire.h. Writers and readers stand in pairs, field by field.
#include "runtime/ranks/messages/round_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace outrider {
namespace {

constexpr uint32_t kPlanMagic = 0x4e4c504f;                        // "OPLN"
constexpr uint32_t kCandidatesMagic = 0x444e434f;                  // "OCND"
constexpr uint32_t kLateDraftTokensMagic = 0x444d414f;             // "OAMD"
constexpr uint32_t kFrameMagic = 0x4d52464f;                       // "OFRM"
constexpr uint32_t kMostSteps = 1 << 24;                           // since the last reply
constexpr uint64_t kMostStepUs = 1'000'000ull * 3600;              // since the last reply
constexpr uint64_t kMostIdleUs = 1'000'000ull * 3600 * 24 * 3650;  // a job's life

void write(WireWriter& out, const Grammar& grammar) {
  out.put(grammar.kind);
  out.put_string(grammar.text);
  out.put_numbers(grammar.end_token_ids);
  out.put_numbers(grammar.reasoning.begin);
  out.put_numbers(grammar.reasoning.end);
  out.put_bool(grammar.reasoning.is_begun);
}

std::shared_ptr<const Grammar> read_grammar(WireReader& in) {
  Grammar grammar;
  grammar.kind = in.get<GrammarKind>();
  grammar.text = in.get_string();
  grammar.end_token_ids = in.get_numbers<int32_t>();
  grammar.reasoning.begin = in.get_numbers<int32_t>();
  grammar.reasoning.end = in.get_numbers<int32_t>();
  grammar.reasoning.is_begun = in.get_bool();
  return std::make_shared<const Grammar>(std::move(grammar));
}

void write(WireWriter& out, const SamplingParams& params) {
  out.put(params.temperature);
  out.put(params.top_p);
  out.put(params.top_k);
  out.put(params.min_p);
  out.put(params.typical_p);
  out.put(params.repetition_penalty);
  out.put(params.presence_penalty);
  out.put(params.frequency_penalty);
  out.put_list(params.logit_bias, [](WireWriter& w, const std::pair<int32_t, float>& bias) {
    w.put(bias.first);
    w.put(bias.second);
  });
  out.put_numbers(params.allowed_token_ids);
  out.put_list(params.bad_words,
               [](WireWriter& w, const std::vector<int32_t>& word) { w.put_numbers(word); });
  out.put_bool(params.grammar != nullptr);
  if (params.grammar) write(out, *params.grammar);
  out.put_bool(params.seed.has_value());
  out.put<uint64_t>(params.seed.value_or(0));
  out.put(params.noise_seed);
  out.put(params.max_tokens);
  out.put(params.min_tokens);
  out.put_numbers(params.stop_token_ids);
  out.put(params.num_logprobs);
  out.put_bool(params.prompt_logprobs);
  out.put(params.verify_mode);
  out.put(params.max_draft_len);
  out.put_bool(params.fixed_draft_len);
  out.put(params.async_drafting);
}

SamplingParams read_params(WireReader& in) {
  SamplingParams params;
  params.temperature = in.get<float>();
  params.top_p = in.get<float>();
  params.top_k = in.get<int32_t>();
  params.min_p = in.get<float>();
  params.typical_p = in.get<float>();
  params.repetition_penalty = in.get<float>();
  params.presence_penalty = in.get<float>();
  params.frequency_penalty = in.get<float>();
  params.logit_bias = in.get_list<std::pair<int32_t, float>>([](WireReader& r) {
    const auto token = r.get<int32_t>();
    return std::pair<int32_t, float>{token, r.get<float>()};
  });
  params.allowed_token_ids = in.get_numbers<int32_t>();
  params.bad_words =
      in.get_list<std::vector<int32_t>>([](WireReader& r) { return r.get_numbers<int32_t>(); });
  if (in.get_bool()) params.grammar = read_grammar(in);
  const bool has_seed = in.get_bool();
  const auto seed = in.get<uint64_t>();
  if (has_seed) params.seed = seed;
  params.noise_seed = in.get<uint64_t>();
  params.max_tokens = in.get<int32_t>();
  params.min_tokens = in.get<int32_t>();
  params.stop_token_ids = in.get_numbers<int32_t>();
  params.num_logprobs = in.get<int32_t>();
  params.prompt_logprobs = in.get_bool();
  params.verify_mode = in.get<VerifyMode>();
  params.max_draft_len = in.get<int32_t>();
  params.fixed_draft_len = in.get_bool();
  params.async_drafting = in.get<AsyncDrafting>();
  return params;
}

void write(WireWriter& out, const DraftToken& draft) {
  out.put(draft.token);
  static_assert(sizeof(DraftCandidate) == 8);  // no padding
  out.put_numbers(draft.candidates);
}

DraftToken read_draft_token(WireReader& in) {
  DraftToken draft;
  draft.token = in.get<int32_t>();
  in.get_numbers(&draft.candidates);
  return draft;
}

void write(WireWriter& out, const SequencePlan& plan) {
  out.put(plan.sequence_id);
  out.put(plan.round);
  out.put(plan.first_position);
  out.put(plan.num_committed_rows);
  out.put_list(plan.draft, [](WireWriter& w, const DraftToken& draft) { w.put(draft.token); });
  out.put_bool(plan.bonus_draft.has_value());
  if (plan.bonus_draft) out.put(plan.bonus_draft->token);
  out.put_bool(plan.replace_blocks);
  out.put_numbers(plan.new_blocks);
}

SequencePlan read_sequence_plan(WireReader& in) {
  SequencePlan plan;
  plan.sequence_id = in.get<uint64_t>();
  plan.round = in.get<uint32_t>();
  plan.first_position = in.get<int32_t>();
  plan.num_committed_rows = in.get<int32_t>();
  const auto read_token = [](WireReader& r) {
    return DraftToken{.token = r.get<int32_t>(), .candidates = {}};
  };
  plan.draft = in.get_list<DraftToken>(read_token);
  if (in.get_bool()) plan.bonus_draft = read_token(in);
  plan.replace_blocks = in.get_bool();
  plan.new_blocks = in.get_numbers<int32_t>();
  return plan;
}

void write_start(WireWriter& out, const SequenceStart& start) {
  out.put(start.sequence_id);
  write(out, start.params);
  out.put_numbers(start.tokens);
  out.put(start.num_output_tokens);
}

SequenceStart read_start(WireReader& in) {
  SequenceStart start;
  start.sequence_id = in.get<uint64_t>();
  start.params = read_params(in);
  start.tokens = in.get_numbers<int32_t>();
  start.num_output_tokens = in.get<int32_t>();
  return start;
}

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

}  // namespace

Bytes encode(const RoundPlan& plan) {
  WireWriter out;
  out.put(kPlanMagic);
  out.put(plan.round);
  out.put_bool(plan.shutdown);
  out.put_numbers(plan.ends);
  out.put_list(plan.starts, write_start);
  out.put_list(plan.sequences,
               [](WireWriter& w, const SequencePlan& sequence) { write(w, sequence); });
  out.put_bool(plan.candidates_follow);
  out.put_bool(plan.awaits_bonus_drafts);
  out.put(plan.num_probe_rows);
  out.put_list(plan.grammars, [](WireWriter& w, const std::shared_ptr<const Grammar>& grammar) {
    write(w, *grammar);
  });
  out.put_numbers(plan.freed);
  return out.take();
}

RoundPlan decode_round_plan(const Bytes& bytes) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kPlanMagic) throw Error("a round plan does not begin as one");
  RoundPlan plan;
  plan.round = in.get<uint64_t>();
  plan.shutdown = in.get_bool();
  plan.ends = in.get_numbers<uint64_t>();
  plan.starts = in.get_list<SequenceStart>(read_start);
  plan.sequences = in.get_list<SequencePlan>(read_sequence_plan);
  plan.candidates_follow = in.get_bool();
  plan.awaits_bonus_drafts = in.get_bool();
  plan.num_probe_rows = in.get<int32_t>();
  plan.grammars = in.get_list<std::shared_ptr<const Grammar>>(read_grammar);
  plan.freed = in.get_numbers<int32_t>();
  in.expect_end();
  return plan;
}

bool has_candidates(const RoundPlan& plan) {
  const auto lists = [](const DraftToken& token) { return !token.candidates.empty(); };
  return std::any_of(plan.sequences.begin(), plan.sequences.end(), [&](const SequencePlan& one) {
    return (one.bonus_draft && lists(*one.bonus_draft)) || std::ranges::any_of(one.draft, lists);
  });
}

// In the plan's order of draft tokens, each sequence's bonus draft token behind them.
Bytes encode_candidates(const RoundPlan& plan) {
  WireWriter out;
  out.put(kCandidatesMagic);
  out.put(plan.round);
  for (const SequencePlan& sequence : plan.sequences) {
    for (const DraftToken& token : sequence.draft) out.put_numbers(token.candidates);
    if (sequence.bonus_draft) out.put_numbers(sequence.bonus_draft->candidates);
  }
  return out.take();
}

void decode_candidates(const Bytes& bytes, RoundPlan& plan) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kCandidatesMagic)
    throw Error("the candidates of a round do not begin as such");
  if (in.get<uint64_t>() != plan.round)
    throw Error(fmt::format("the candidates of round {} are not the next message", plan.round));
  for (SequencePlan& sequence : plan.sequences) {
    for (DraftToken& token : sequence.draft) in.get_numbers(&token.candidates);
    if (sequence.bonus_draft) in.get_numbers(&sequence.bonus_draft->candidates);
  }
  in.expect_end();
}

Bytes encode(const LateDraftTokens& late_tokens) {
  WireWriter out;
  out.put(kLateDraftTokensMagic);
  out.put(late_tokens.round);
  out.put_list(late_tokens.bonus_drafts, [](WireWriter& w, const LateDraftToken& bonus_draft) {
    w.put(bonus_draft.sequence_id);
    write(w, bonus_draft.token);
  });
  return out.take();
}

LateDraftTokens decode_late_draft_tokens(const Bytes& bytes) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kLateDraftTokensMagic)
    throw Error("the late_tokens of a round does not begin as one");
  LateDraftTokens late_tokens;
  late_tokens.round = in.get<uint64_t>();
  late_tokens.bonus_drafts = in.get_list<LateDraftToken>([](WireReader& r) {
    const auto sequence_id = r.get<uint64_t>();
    return LateDraftToken{sequence_id, read_draft_token(r)};
  });
  in.expect_end();
  return late_tokens;
}

Bytes encode_frame(const Frame& frame) {
  WireWriter out;
  out.put(kFrameMagic);
  out.put(kDraftLinkVersion);
  out.put(frame.kind);
  out.put(frame.epoch);
  out.put(checksum(frame));
  out.put(static_cast<uint32_t>(frame.payload.size()));
  Bytes bytes = out.take();
  bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  return bytes;
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

Bytes encode(const DraftRequest& request) {
  WireWriter out;
  out.put(request.serial);
  out.put_numbers(request.closes);
  out.put_list(request.opens, write_start);
  out.put_list(request.commits, [](WireWriter& w, const DraftCommit& commit) {
    w.put(commit.sequence_id);
    w.put(commit.round);
    w.put(commit.num_tokens_before);
    w.put_numbers(commit.tokens);
    w.put(commit.draft_len);
    w.put(commit.in_flight);
  });
  return out.take();
}

DraftRequest decode_draft_request(const Bytes& bytes) {
  WireReader in(bytes);
  DraftRequest request;
  request.serial = in.get<uint64_t>();
  request.closes = in.get_numbers<uint64_t>();
  request.opens = in.get_list<SequenceStart>(read_start);
  request.commits = in.get_list<DraftCommit>([](WireReader& r) {
    DraftCommit commit;
    commit.sequence_id = r.get<uint64_t>();
    commit.round = r.get<uint32_t>();
    commit.num_tokens_before = r.get<int32_t>();
    commit.tokens = r.get_numbers<int32_t>();
    commit.draft_len = r.get<int32_t>();
    commit.in_flight = r.get<int32_t>();
    return commit;
  });
  in.expect_end();
  return request;
}

Bytes encode(const DraftReply& reply) {
  WireWriter out;
  out.put(reply.serial);
  out.put(reply.step_time_us);
  out.put(reply.num_steps);
  out.put_list(reply.blocks, [](WireWriter& w, const DraftBlock& block) {
    w.put(block.sequence_id);
    w.put(block.round);
    w.put(block.base_len);
    w.put(block.guess);
    w.put(block.first);
    w.put(static_cast<uint32_t>(block.tokens.size()));
    w.put_numbers(PackedTokens(block.tokens).bytes());
  });
  out.put(reply.num_rows);
  out.put(reply.idle_us);
  return out.take();
}

PackedReply decode_draft_reply(const Bytes& bytes) {
  WireReader in(bytes);
  PackedReply reply;
  reply.serial = in.get<uint64_t>();
  reply.step_time_us = in.get<uint64_t>();
  reply.num_steps = in.get<uint32_t>();
  reply.blocks = in.get_list<PackedBlock>([](WireReader& r) {
    PackedBlock block;
    block.sequence_id = r.get<uint64_t>();
    block.round = r.get<uint32_t>();
    block.base_len = r.get<int32_t>();
    block.guess = r.get<int32_t>();
    block.first = r.get<int32_t>();
    const auto num_tokens = r.get<uint32_t>();
    const std::span<const std::byte> tokens = r.get_bytes();
    if (num_tokens > tokens.size() / PackedTokens::kLeastTokenBytes)
      throw Error("a draft block has fewer tokens than it says");
    block.tokens = PackedTokens(num_tokens, tokens);
    return block;
  });
  reply.num_rows = in.get<uint32_t>();
  reply.idle_us = in.get<uint64_t>();
  in.expect_end();
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
  return reply;
}

}  // namespace outrider
