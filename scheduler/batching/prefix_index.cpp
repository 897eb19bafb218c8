// See prefix_index.h.
#include "scheduler/batching/prefix_index.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {
namespace {

uint64_t hash_of(uint64_t before, std::span<const int32_t> tokens, std::string_view salt) {
  uint64_t state = before ^ std::hash<std::string_view>()(salt);
  for (int32_t token : tokens) {
    state = (state ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9ull;
    state ^= state >> 29;
  }
  return state;
}

}  // namespace

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_size)
    : block_size_(static_cast<size_t>(block_size)),
      slots_(static_cast<size_t>(num_blocks)),
      tokens_(slots_.size() * block_size_),
      buckets_(std::bit_ceil(slots_.size() + 1), -1) {}

std::span<const int32_t> PrefixIndex::tokens_of(int32_t block) const {
  return std::span(tokens_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
}

std::string_view PrefixIndex::salt_of(int32_t block) const {
  const auto found = salts_.find(block);
  return found == salts_.end() ? std::string_view() : found->second;
}

PrefixIndex::Entry PrefixIndex::find(uint64_t before,
                                     std::span<const int32_t> tokens,
                                     std::string_view salt) const {
  OUTRIDER_CHECK(tokens.size() == block_size_);
  if (before != kEmptyText) salt = {};
  const uint64_t hash = hash_of(before, tokens, salt);
  int32_t block = buckets_[hash & (buckets_.size() - 1)];
  for (; block >= 0; block = at(block).next) {
    if (at(block).before == before && salt_of(block) == salt &&
        std::ranges::equal(tokens_of(block), tokens)) {
      return {block, at(block).content};
    }
  }
  return {};
}

uint64_t PrefixIndex::add(int32_t block,
                          uint64_t before,
                          std::span<const int32_t> tokens,
                          std::string_view salt) {
  OUTRIDER_CHECK(tokens.size() == block_size_ && !holds(block));
  Slot& slot = at(block);
  slot.content = ++last_content_;
  slot.before = before;
  if (before != kEmptyText) salt = {};
  if (!salt.empty()) salts_.emplace(block, salt);
  slot.hash = hash_of(before, tokens, salt);
  std::ranges::copy(tokens, tokens_.begin() + block * static_cast<ptrdiff_t>(block_size_));
  slot.next = std::exchange(*bucket_of(slot.hash), block);
  return slot.content;
}

void PrefixIndex::remove(int32_t block) {
  OUTRIDER_CHECK(holds(block));
  Slot& slot = at(block);
  int32_t* link = bucket_of(slot.hash);
  while (*link != block) link = &at(*link).next;
  *link = slot.next;
  slot = {};
  salts_.erase(block);
}

}  // namespace outrider
