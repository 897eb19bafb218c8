// See speculation_cache.h.
#include "scheduler/drafting/speculation_cache.h"

#include <algorithm>
#include <span>

namespace outrider {

SpeculationCache::Prepared* SpeculationCache::find(int32_t base_len, int32_t guess) {
  const auto end = blocks_.begin() + static_cast<ptrdiff_t>(num_blocks_);
  const auto found = std::find_if(blocks_.begin(), end, [&](const Prepared& block) {
    return block.base_len == base_len && block.guess == guess;
  });
  return found == end ? nullptr : &*found;
}

bool SpeculationCache::store(int32_t base_len,
                             int32_t guess,
                             int32_t first,
                             const PackedTokens& tokens) {
  if (tokens.size() == 0 || num_tokens_ + tokens.size() > kMaxTokens) return false;
  if (num_bytes_ + tokens.bytes.size() > kMaxBytes) return false;
  Prepared* block = find(base_len, guess);
  if (block == nullptr) {
    if (first != 0 || num_blocks_ == kMaxBlocks) return false;
    if (num_blocks_ == blocks_.size()) blocks_.emplace_back();
    block = &blocks_[num_blocks_++];
    block->base_len = base_len;
    block->guess = guess;
    block->num_tokens = 0;
  }
  if (first < 0 || static_cast<size_t>(first) != block->num_tokens) return false;
  num_tokens_ += tokens.size();
  num_bytes_ += tokens.bytes.size();
  block->num_tokens += tokens.size();
  block->bytes.insert(block->bytes.end(), tokens.bytes.begin(), tokens.bytes.end());
  return true;
}

void SpeculationCache::take(int32_t base_len, int32_t guess, std::vector<DraftToken>& block) {
  block.clear();
  const Prepared* const found = find(base_len, guess);
  if (found && !PackedTokens{found->num_tokens, found->bytes}.unpack(block)) block.clear();
  clear();
}

void SpeculationCache::clear() {
  for (Prepared& block : std::span(blocks_).first(num_blocks_)) {
    block.bytes.clear();
    // Else every one of them might come to hold as much as all together may.
    if (block.bytes.capacity() > kMaxBytes / kMaxBlocks) block.bytes.shrink_to_fit();
  }
  num_blocks_ = 0;
  num_tokens_ = 0;
  num_bytes_ = 0;
}

}  // namespace outrider
