// See kv_blocks.h.
#include "scheduler/batching/kv_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {

void BlockTable::tell(SequencePlan& plan) {
  if (replace_) num_told_ = 0;
  plan.replace_blocks = replace_;
  plan.new_blocks.assign(std::span(ids_).subspan(static_cast<size_t>(num_told_)));
  num_told_ = size();
  replace_ = false;
}

KvBlocks::KvBlocks(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size),
      num_owners_(static_cast<size_t>(num_blocks), 0),
      index_(num_blocks, block_size) {
  empty_.reserve(num_owners_.size());
  for (int32_t id = num_blocks - 1; id >= 0; --id) empty_.push_back(id);
  for (int32_t id = 0; id < num_blocks; ++id) nodes_.push_back(others_.insert(others_.end(), id));
}

int32_t KvBlocks::blocks_for(int64_t num_positions) const {
  return static_cast<int32_t>((num_positions + block_size_ - 1) / block_size_);
}

bool KvBlocks::grow(BlockTable& table, int64_t num_positions) {
  const int32_t num_missing = blocks_for(num_positions) - table.size();
  if (num_missing > num_free()) return false;
  for (int32_t i = 0; i < num_missing; ++i) table.ids_.push_back(take_free_block());
  return true;
}

int32_t KvBlocks::take_free_block() {
  const int32_t block = empty_.empty() ? cached_.front() : empty_.back();
  if (empty_.empty()) {
    others_.splice(others_.end(), cached_, cached_.begin());
    index_.remove(block);
  } else {
    empty_.pop_back();
  }
  OUTRIDER_CHECK(num_owners(block) == 0 && !index_.holds(block));
  num_owners(block) = 1;
  return block;
}

void KvBlocks::shrink(BlockTable& table, int64_t num_positions) {
  const int32_t num_kept = blocks_for(num_positions);
  OUTRIDER_CHECK(num_kept == 0 || num_kept >= table.num_shared_);
  // From the end, so that of a prefix the tail is freed before what it continues.
  while (table.size() > num_kept) {
    release(table.ids_.back());
    table.ids_.pop_back();
  }
  if (table.num_told_ > table.size()) table.replace_ = true;
  if (num_kept > 0) return;
  table.num_shared_ = 0;
  table.content_ = PrefixIndex::kEmptyText;
}

KvPrefix KvBlocks::find_prefix(std::span<const int32_t> tokens,
                               int64_t max_positions,
                               std::string_view salt) const {
  KvPrefix prefix;
  const auto size = static_cast<size_t>(block_size_);
  const size_t num_positions = std::min(tokens.size(), static_cast<size_t>(max_positions));
  for (size_t begin = 0; begin + size <= num_positions; begin += size) {
    const PrefixIndex::Entry found = index_.find(prefix.content, tokens.subspan(begin, size), salt);
    if (found.block < 0) break;
    prefix.blocks.push_back(found.block);
    prefix.content = found.content;
    if (num_owners_[static_cast<size_t>(found.block)] == 0) ++prefix.num_cached;
  }
  return prefix;
}

void KvBlocks::share(BlockTable& table, const KvPrefix& prefix) {
  OUTRIDER_CHECK(table.size() == 0);
  for (int32_t block : prefix.blocks) hold(block);
  table.ids_ = prefix.blocks;
  table.num_shared_ = table.size();
  table.content_ = prefix.content;
}

void KvBlocks::publish(BlockTable& table,
                       std::span<const int32_t> tokens,
                       int64_t num_positions,
                       std::string_view salt) {
  const auto size = static_cast<size_t>(block_size_);
  while (static_cast<int64_t>(table.num_shared_ + 1) * block_size_ <= num_positions) {
    const auto i = static_cast<size_t>(table.num_shared_);
    const std::span<const int32_t> own = tokens.subspan(i * size, size);
    const PrefixIndex::Entry found = index_.find(table.content_, own, salt);
    if (found.block < 0) {
      table.content_ = index_.add(table.ids_[i], table.content_, own, salt);
    } else {
      hold(found.block);
      release(table.ids_[i]);
      table.ids_[i] = found.block;
      table.replace_ = true;
      table.content_ = found.content;
    }
    ++table.num_shared_;
  }
}

void KvBlocks::withdraw(const BlockTable& table) {
  for (int32_t block : table.ids()) {
    if (index_.holds(block)) index_.remove(block);
  }
}

void KvBlocks::hold(int32_t block) {
  OUTRIDER_CHECK(index_.holds(block));
  if (num_owners(block) == 0)
    others_.splice(others_.end(), cached_, nodes_[static_cast<size_t>(block)]);
  ++num_owners(block);
}

void KvBlocks::release(int32_t block) {
  OUTRIDER_CHECK(num_owners(block) > 0);
  if (--num_owners(block) > 0) return;
  if (index_.holds(block)) {
    cached_.splice(cached_.end(), others_, nodes_[static_cast<size_t>(block)]);
    return;
  }
  empty_.push_back(block);
  if (tracks_freed_) freed_.push_back(block);
}

void KvBlocks::track_freed() {
  tracks_freed_ = true;
  freed_ = empty_;
}

std::vector<int32_t> KvBlocks::take_freed() {
  std::vector<int32_t> blocks = std::exchange(freed_, {});
  std::erase_if(blocks,
                [&](int32_t block) { return num_owners(block) > 0 || index_.holds(block); });
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

std::string KvBlocks::fault(std::span<const BlockTable* const> tables) const {
  std::vector<int32_t> num_tables(num_owners_.size(), 0);
  for (const BlockTable* table : tables) {
    for (int32_t i = 0; i < table->size(); ++i) {
      const auto block = static_cast<size_t>(table->ids()[static_cast<size_t>(i)]);
      ++num_tables[block];
      if (i >= table->num_shared() && index_.holds(static_cast<int32_t>(block))) {
        return fmt::format("block {} is published and may be written", block);
      }
      if (i >= table->num_shared() && num_owners_[block] > 1) {
        return fmt::format("block {} is shared and may be written", block);
      }
    }
  }
  std::vector<bool> is_free(num_owners_.size(), false);
  if (std::string wrong = list_fault(is_free); !wrong.empty()) return wrong;
  for (size_t id = 0; id < num_owners_.size(); ++id) {
    if (is_free[id] && num_tables[id] > 0) return fmt::format("block {} is free and owned", id);
    if (num_tables[id] != num_owners_[id]) {
      return fmt::format("block {} has {} owners, not {}", id, num_tables[id], num_owners_[id]);
    }
    if (!is_free[id] && num_tables[id] == 0) return fmt::format("block {} is leaked", id);
  }
  return {};
}

// Fills in which blocks are empty or cached.
std::string KvBlocks::list_fault(std::vector<bool>& is_free) const {
  const auto note = [&](int32_t block) {
    const bool twice = is_free[static_cast<size_t>(block)];
    is_free[static_cast<size_t>(block)] = true;
    return twice ? fmt::format("block {} is free twice", block) : std::string();
  };
  for (int32_t block : empty_) {
    if (std::string wrong = note(block); !wrong.empty()) return wrong;
    if (index_.holds(block)) return fmt::format("block {} is empty and published", block);
  }
  for (int32_t block : cached_) {
    if (std::string wrong = note(block); !wrong.empty()) return wrong;
    if (!index_.holds(block)) return fmt::format("block {} is cached and not published", block);
  }
  return {};
}

}  // namespace outrider
