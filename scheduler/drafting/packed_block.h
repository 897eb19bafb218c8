// What the draft sends, as the coordinator keeps it: of a block only the header is read, the tokens
// stay the bytes they came as until somebody wants them. Most prepared blocks are for outcomes that
// do not come, and reading all of them would stand between a round's step and the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/round.h"

namespace outrider {

// Per token its id, the number of its candidates (4 bytes each), and the candidates as they lie in
// memory (8 bytes each).
class PackedTokens {
 public:
  static constexpr size_t kLeastTokenBytes = 8;

  PackedTokens() = default;
  PackedTokens(const std::vector<DraftToken>& tokens);  // by no cast, as one writes a list
  // As they came: bytes that may hold anything, and a number that fits into them
  // (kLeastTokenBytes each).
  PackedTokens(size_t num_tokens, std::span<const std::byte> bytes);

  size_t size() const { return num_tokens_; }
  bool empty() const { return num_tokens_ == 0; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void append(const PackedTokens& more);

  // Nothing when the bytes are not so many tokens. What the tokens say is not looked at.
  std::optional<std::vector<DraftToken>> unpack() const;

 private:
  size_t num_tokens_ = 0;
  std::vector<std::byte> bytes_;
};

// A DraftBlock.
struct PackedBlock {
  PackedBlock() = default;
  PackedBlock(const DraftBlock& block);  // as it would come over the wire

  uint64_t sequence_id = 0;
  uint32_t round = 0;
  int32_t base_len = 0;
  PackedTokens tokens;
  int32_t guess = -1;
  int32_t first = 0;
};

// A DraftReply.
struct PackedReply {
  uint64_t serial = 0;
  uint64_t step_time_us = 0;
  uint32_t num_steps = 0;
  std::vector<PackedBlock> blocks;
  uint32_t num_rows = 0;
  uint64_t idle_us = 0;
};

}  // namespace outrider
