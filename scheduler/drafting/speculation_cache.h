// What the draft has prepared for the outcomes of a sampling round that is being computed: blocks
// for the round after it, by the text that they stand behind. When the round is decided its outcome
// is looked up: a hit is the next round's block at once. One per sequence, kept by the draft
// ledger; plain values, bounded in blocks, tokens and bytes whatever the draft sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/drafting/packed_block.h"

namespace outrider {

class SpeculationCache {
 public:
  static constexpr size_t kMaxBlocks = 128;
  static constexpr size_t kMaxTokens = 2048;  // of all blocks together, as the next
  static constexpr size_t kMaxBytes = 1 << 20;

  // Tokens [first, first + tokens.size()) of the block behind a text of base_len tokens whose last
  // is `guess`. first = 0 begins a block, otherwise it goes on where it ended. False when nothing
  // was kept: a block begun twice, one with a gap, no room. The tokens stay packed: most blocks are
  // never used.
  bool store(int32_t base_len, int32_t guess, int32_t first, const PackedTokens& tokens);

  // The block behind the text that came, empty when none was prepared that can be read; and forgets
  // all blocks.
  void take(int32_t base_len, int32_t guess, std::vector<DraftToken>& block);
  void clear();

  size_t num_blocks() const { return num_blocks_; }
  size_t num_tokens() const { return num_tokens_; }

 private:
  struct Prepared {
    int32_t base_len = 0;
    int32_t guess = 0;
    size_t num_tokens = 0;
    std::vector<std::byte> bytes;
  };
  Prepared* find(int32_t base_len, int32_t guess);

  // Few: looked through one by one. Behind num_blocks_ lie forgotten ones, whose memory is used
  // again where they were of usual size.
  std::vector<Prepared> blocks_;
  size_t num_blocks_ = 0;
  size_t num_tokens_ = 0;
  size_t num_bytes_ = 0;
};

}  // namespace outrider
