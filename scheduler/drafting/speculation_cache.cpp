// See speculation_cache.h.
#include "scheduler/drafting/speculation_cache.h"

#include <algorithm>
#include <utility>

namespace outrider {

SpeculationCache::Prepared* SpeculationCache::find(int32_t base_len, int32_t guess) {
  const auto end = blocks_.begin() + static_cast<ptrdiff_t>(num_blocks_);
  const auto found = std::find_if(blocks_.begin(), end, [&](const Prepared& block) {
    return block.base_len == base_len && block.guess == guess;
  });
  return found == end ? nullptr : &*found;
}

bool SpeculationCache::store(int32_t base_len, int32_t guess, int32_t first, PackedTokens tokens) {
  if (tokens.empty() || num_tokens_ + tokens.size() > kMaxTokens) return false;
  if (num_bytes_ + tokens.bytes().size() > kMaxBytes) return false;
  Prepared* block = find(base_len, guess);
  if (block == nullptr) {
    if (first != 0 || num_blocks_ == kMaxBlocks) return false;
    if (num_blocks_ == blocks_.size()) blocks_.emplace_back();
    block = &blocks_[num_blocks_++];
    *block = {base_len, guess, {}};
  }
  if (first < 0 || static_cast<size_t>(first) != block->tokens.size()) return false;
  num_tokens_ += tokens.size();
  num_bytes_ += tokens.bytes().size();
  if (first == 0) {
    block->tokens = std::move(tokens);
  } else {
    block->tokens.append(tokens);
  }
  return true;
}

std::optional<std::vector<DraftToken>> SpeculationCache::take(int32_t base_len, int32_t guess) {
  std::optional<std::vector<DraftToken>> tokens;
  if (const Prepared* block = find(base_len, guess)) tokens = block->tokens.unpack();
  clear();
  return tokens;
}

void SpeculationCache::clear() {
  num_blocks_ = 0;
  num_tokens_ = 0;
  num_bytes_ = 0;
}

}  // namespace outrider
