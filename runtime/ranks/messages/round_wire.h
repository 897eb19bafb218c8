// The round's messages as bytes. Plans travel from the coordinator to every target rank; requests
// and replies between the coordinator and the draft are framed (magic, version, length, epoch,
// checksum), since the draft is only trusted to give hints.
#pragma once

#include "runtime/comm/wire.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/round.h"

namespace outrider {

// In two parts, the second only where the plan says that it follows: all that the step needs, and
// then the candidates of the draft tokens, that only the verification asks for.
Bytes encode(const RoundPlan& plan);
RoundPlan decode_round_plan(const Bytes& bytes);  // throws Error
Bytes encode_candidates(const RoundPlan& plan);
void decode_candidates(const Bytes& bytes, RoundPlan& plan);  // throws Error
bool has_candidates(const RoundPlan& plan);
Bytes encode(const LateDraftTokens& late_tokens);
LateDraftTokens decode_late_draft_tokens(const Bytes& bytes);  // throws Error

// A frame of the draft link. Decoding gives nothing for a frame that is damaged, of another
// version, too long, or of another epoch: the caller drops it.
// kAlive from the coordinator's side asks for one from the draft's. kHello: a life of the draft has
// begun, of the frame's epoch (payload: draft_hello.h, or empty). kForget: what the draft was told
// so far is void.
enum class FrameKind : uint8_t {
  kRequest = 1,
  kReply = 2,
  kAlive = 3,
  kShutdown = 4,
  kGone = 5,
  kHello = 6,
  kForget = 7,
};

struct Frame {
  FrameKind kind = FrameKind::kAlive;
  uint32_t epoch = 0;  // of the engine's life; a frame of another life is stale
  Bytes payload;
};
constexpr size_t kMaxFrameBytes = 64u << 20;
// Of frames and of what they carry; both ends of a draft's link must have the same.
constexpr uint16_t kDraftLinkVersion = 5;

Bytes encode_frame(const Frame& frame);
Bytes encode_frame(FrameKind kind, uint32_t epoch);   // without a payload
bool decode_frame(const Bytes& bytes, Frame* frame);  // of any epoch
bool decode_frame(const Bytes& bytes, uint32_t epoch, Frame* frame);

Bytes encode(const DraftRequest& request);
DraftRequest decode_draft_request(const Bytes& bytes);  // throws Error
Bytes encode(const DraftReply& reply);
// Reads all but the blocks' tokens; throws Error.
PackedReply decode_draft_reply(Bytes bytes);

}  // namespace outrider
