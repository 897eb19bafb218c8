// What the draft sends, as the coordinator keeps it: of a block only the header is read, the tokens
// stay the bytes they came as until somebody wants them. Most prepared blocks are for outcomes that
// do not come, and reading all of them would stand between a round's step and the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"

namespace outrider {

// Per token its id, the number of its candidates (4 bytes each), and the candidates as they lie in
// memory (8 bytes each). A view of bytes as they came, which may hold anything.
struct PackedTokens {
  static constexpr size_t kLeastTokenBytes = 8;

  size_t num_tokens = 0;
  std::span<const std::byte> bytes;

  size_t size() const { return num_tokens; }
  // Appends them; false when the bytes are not so many tokens: then some may be there. What the
  // tokens say is not looked at.
  bool unpack(std::vector<DraftToken>& tokens) const;
};

// A DraftBlock.
struct PackedBlock {
  uint64_t sequence_id = 0;
  uint32_t round = 0;
  int32_t base_len = 0;
  PackedTokens tokens;
  int32_t guess = -1;
  int32_t first = 0;
};

// A DraftReply. Moved only: a copy's tokens would lie in the original's message.
struct PackedReply {
  PackedReply() = default;
  PackedReply(PackedReply&&) = default;
  PackedReply& operator=(PackedReply&&) = default;

  uint64_t serial = 0;
  uint64_t step_time_us = 0;
  uint32_t num_steps = 0;
  std::vector<PackedBlock> blocks;
  uint32_t num_rows = 0;
  uint64_t idle_us = 0;
  std::vector<std::byte> message;  // the blocks' tokens lie in it
};

}  // namespace outrider
