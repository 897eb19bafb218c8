// The draft model's KV blocks that nobody holds. Each block is held by one chain of draft tokens
// (chain.h) or lies here; what a branch shares with its sequence's main chain the main chain holds.
// Used by the draft worker's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace outrider {

class DraftKvPool {
 public:
  DraftKvPool(int32_t num_blocks, int32_t block_size);

  int32_t block_size() const { return block_size_; }
  size_t blocks_for(int32_t num_positions) const;
  size_t num_free() const { return free_.size(); }
  // Appends to a table until it has num_blocks; false, with nothing changed, when too few are free.
  bool grow(std::vector<int32_t>& table, size_t num_blocks);
  // Takes back the table's blocks from index `first` on.
  void take_back(std::vector<int32_t>& table, size_t first);
  std::span<const int32_t> free_blocks() const { return free_; }

  // For checks: called for blocks that have become free (at once for those that are), and for each
  // that is about to be used.
  struct Watch {
    std::function<void(std::span<const int32_t>)> freed;
    std::function<void(int32_t)> taken;
  };
  void watch(Watch watch);

 private:
  int32_t block_size_;
  std::vector<int32_t> free_;  // used as a stack
  Watch watch_;                // empty functions: nobody does
};

}  // namespace outrider
