// See kv_blocks.h.
#include "scheduler/kv_blocks.h"

#include <fmt/format.h>

#include "runtime/base/error.h"

namespace outrider {

void BlockTable::tell(SequencePlan& plan) {
  if (replace_) num_told_ = 0;
  plan.replace_blocks = replace_;
  plan.new_blocks.assign(ids_.begin() + num_told_, ids_.end());
  num_told_ = size();
  replace_ = false;
}

KvBlocks::KvBlocks(int32_t num_blocks, int32_t block_size)
    : in_use_(static_cast<size_t>(num_blocks), false), block_size_(block_size) {
  free_.reserve(in_use_.size());
  for (int32_t id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

int32_t KvBlocks::blocks_for(int64_t num_positions) const {
  return static_cast<int32_t>((num_positions + block_size_ - 1) / block_size_);
}

bool KvBlocks::grow(BlockTable& table, int64_t num_positions) {
  const int32_t num_missing = blocks_for(num_positions) - table.size();
  if (num_missing > num_free()) return false;
  for (int32_t i = 0; i < num_missing; ++i) {
    const int32_t id = free_.back();
    free_.pop_back();
    OUTRIDER_CHECK(!in_use_[static_cast<size_t>(id)]);
    in_use_[static_cast<size_t>(id)] = true;
    table.ids_.push_back(id);
  }
  return true;
}

void KvBlocks::shrink(BlockTable& table, int64_t num_positions) {
  const int32_t num_kept = blocks_for(num_positions);
  while (table.size() > num_kept) {
    const int32_t id = table.ids_.back();
    table.ids_.pop_back();
    OUTRIDER_CHECK(in_use_[static_cast<size_t>(id)]);
    in_use_[static_cast<size_t>(id)] = false;
    free_.push_back(id);
  }
  if (table.num_told_ > table.size()) table.replace_ = true;
}

std::string KvBlocks::fault(std::span<const BlockTable* const> tables) const {
  std::vector<int32_t> num_owners(in_use_.size(), 0);
  for (const BlockTable* table : tables) {
    for (int32_t id : table->ids()) ++num_owners[static_cast<size_t>(id)];
  }
  std::vector<bool> is_free(in_use_.size(), false);
  for (int32_t id : free_) {
    if (is_free[static_cast<size_t>(id)]) return fmt::format("block {} is free twice", id);
    is_free[static_cast<size_t>(id)] = true;
  }
  for (size_t id = 0; id < in_use_.size(); ++id) {
    if (num_owners[id] > 1) return fmt::format("block {} has {} owners", id, num_owners[id]);
    if (is_free[id] && num_owners[id] > 0) return fmt::format("block {} is free and owned", id);
    if (!is_free[id] && num_owners[id] == 0) return fmt::format("block {} is leaked", id);
    if (in_use_[id] == is_free[id]) return fmt::format("block {} is booked wrongly", id);
  }
  return {};
}

}  // namespace outrider
