// Who owns which block of the target's KV memory. Only numbers: the memory itself lies with the
// target ranks, which follow the block tables the plan carries. Called by the planner on the
// coordinator's thread. Invariant: every block is free or in exactly one table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scheduler/round.h"

namespace outrider {

// The blocks of one sequence in position order, and how much of the table the ranks have already
// been told.
class BlockTable {
 public:
  const std::vector<int32_t>& ids() const { return ids_; }
  int32_t size() const { return static_cast<int32_t>(ids_.size()); }
  // Writes what the ranks do not know yet into plan.replace_blocks and plan.new_blocks; they know
  // it from then on.
  void tell(SequencePlan& plan);

 private:
  friend class KvBlocks;
  std::vector<int32_t> ids_;
  int32_t num_told_ = 0;
  bool replace_ = false;  // the ranks' table holds blocks that are no longer ours
};

class KvBlocks {
 public:
  KvBlocks(int32_t num_blocks, int32_t block_size);

  int32_t blocks_for(int64_t num_positions) const;
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_blocks() const { return static_cast<int32_t>(in_use_.size()); }

  // Makes room for positions [0, num_positions). False, with nothing changed, when too few blocks
  // are free.
  bool grow(BlockTable& table, int64_t num_positions);
  // Gives back the blocks past the first num_positions positions.
  void shrink(BlockTable& table, int64_t num_positions);

  // Whether every block is free or in exactly one of the tables, which must be all there are: the
  // first thing wrong as a sentence, empty when the books are right.
  std::string fault(std::span<const BlockTable* const> tables) const;

 private:
  std::vector<int32_t> free_;  // used as a stack
  std::vector<bool> in_use_;
  int32_t block_size_;
};

}  // namespace outrider
