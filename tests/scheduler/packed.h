// Draft blocks as they come over the wire.
#pragma once

#include <optional>
#include <vector>

#include "runtime/comm/wire.h"
#include "scheduler/batching/planner.h"
#include "scheduler/drafting/packed_block.h"

namespace outrider::testing {

inline Bytes packed(const std::vector<DraftToken>& tokens) {
  WireWriter out;
  for (const DraftToken& token : tokens) out.fields(token.token, token.candidates);
  return out.take();
}

// Nothing where they cannot be read.
inline std::optional<std::vector<DraftToken>> unpacked(const PackedTokens& tokens) {
  std::vector<DraftToken> read;
  return tokens.unpack(read) ? std::optional(read) : std::nullopt;
}

inline bool offer(Planner& planner, const DraftBlock& block) {
  const Bytes tokens = packed(block.tokens);
  return planner.offer({.sequence_id = block.sequence_id,
                        .round = block.round,
                        .base_len = block.base_len,
                        .tokens = {block.tokens.size(), tokens},
                        .guess = block.guess,
                        .first = block.first});
}

}  // namespace outrider::testing
