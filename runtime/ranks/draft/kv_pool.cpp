// See kv_pool.h.
#include "runtime/ranks/draft/kv_pool.h"

#include <utility>

namespace outrider {

DraftKvPool::DraftKvPool(int32_t num_blocks, int32_t block_size) : block_size_(block_size) {
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

size_t DraftKvPool::blocks_for(int32_t num_positions) const {
  return static_cast<size_t>((num_positions + block_size_ - 1) / block_size_);
}

bool DraftKvPool::grow(std::vector<int32_t>& table, size_t num_blocks) {
  if (table.size() + free_.size() < num_blocks) return false;
  while (table.size() < num_blocks) {
    table.push_back(free_.back());
    free_.pop_back();
    if (watch_.taken) watch_.taken(table.back());
  }
  return true;
}

void DraftKvPool::take_back(std::vector<int32_t>& table, size_t first) {
  if (table.size() <= first) return;
  if (watch_.freed) watch_.freed(std::span(table).subspan(first));
  free_.insert(free_.end(), table.begin() + static_cast<std::ptrdiff_t>(first), table.end());
  table.resize(first);
}

void DraftKvPool::watch(Watch watch) {
  watch_ = std::move(watch);
  watch_.freed(free_);
}

}  // namespace outrider
