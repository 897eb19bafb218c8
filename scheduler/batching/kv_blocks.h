// Who owns which block of the target's KV memory, and which text it holds. Only numbers: the memory
// itself lies with the target ranks, which follow the block tables the plan carries. Called by the
// planner on the coordinator's thread; every operation costs O(1) per block it touches.
//
// Prefix reuse: a block full of committed positions is published when its owner has shown that its
// KV is good; from then on other tables may begin with it. A block goes through these states:
//   empty    free, holds nothing
//   private  in one table, being written
//   shared   published, in one or more tables, never written again
//   cached   free, but still published: found again, or freed when no empty block is left, the
//            least recently freed first
// Why no copy-on-write: rows are computed at positions from the sequence's num_computed on.
// Published are only blocks whose positions all lie before it, and a table begins with published
// blocks only up to it. num_computed goes back only when the whole table is given up.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/batching/prefix_index.h"
#include "scheduler/round.h"

namespace outrider {

// The blocks of one sequence in position order, and how much of the table the ranks have already
// been told.
class BlockTable {
 public:
  const std::vector<int32_t>& ids() const { return ids_; }
  int32_t size() const { return static_cast<int32_t>(ids_.size()); }
  // Blocks at the front that were published, which other tables may hold too: never written.
  int32_t num_shared() const { return num_shared_; }
  // Writes what the ranks do not know yet into plan.replace_blocks and plan.new_blocks; they know
  // it from then on.
  void tell(SequencePlan& plan);

 private:
  friend class KvBlocks;
  std::vector<int32_t> ids_;
  int32_t num_told_ = 0;
  bool replace_ = false;  // the ranks' table holds blocks that are no longer ours
  int32_t num_shared_ = 0;
  uint64_t content_ = PrefixIndex::kEmptyText;  // of the shared blocks together
};

// A run of published blocks that a text begins with.
struct KvPrefix {
  std::vector<int32_t> blocks;
  int32_t num_cached = 0;  // of these, in no table: taking the prefix takes them from the free ones
  uint64_t content = PrefixIndex::kEmptyText;
};

class KvBlocks {
 public:
  KvBlocks(int32_t num_blocks, int32_t block_size);
  KvBlocks(const KvBlocks&) = delete;  // nodes_ are of its own lists

  int32_t block_size() const { return block_size_; }
  int32_t blocks_for(int64_t num_positions) const;
  // Empty and cached ones.
  int32_t num_free() const { return static_cast<int32_t>(empty_.size() + cached_.size()); }

  // Makes room for positions [0, num_positions). False, with nothing changed, when too few blocks
  // are free.
  bool grow(BlockTable& table, int64_t num_positions);
  // Gives back the blocks past the first num_positions positions. Shared ones go only with the
  // whole table (num_positions 0).
  void shrink(BlockTable& table, int64_t num_positions);

  // The longest run of published blocks that `tokens` begins with, of at most max_positions, among
  // those of the same salt.
  KvPrefix find_prefix(std::span<const int32_t> tokens,
                       int64_t max_positions,
                       std::string_view salt = {}) const;
  // An empty table begins with the prefix, just found.
  void share(BlockTable& table, const KvPrefix& prefix);
  // The KV of the first num_positions of `tokens` is committed and good: the table's full blocks in
  // it can be found from now on. Where another table has published the same text meanwhile, its
  // block takes the place of this one's, which holds the same bits.
  void publish(BlockTable& table,
               std::span<const int32_t> tokens,
               int64_t num_positions,
               std::string_view salt = {});
  // Something in the table's blocks is wrong: nobody may find them any more.
  void withdraw(const BlockTable& table);

  // From now on remembers which blocks become empty; those that are now count too.
  void track_freed();
  // Blocks that became empty since the last call and still are, ascending. Only when tracked.
  std::vector<int32_t> take_freed();

  // Whether every block is free, or in as many of the tables as its count says; the tables must be
  // all there are. The first thing wrong as a sentence, empty when the books are right.
  std::string fault(std::span<const BlockTable* const> tables) const;

 private:
  int32_t& num_owners(int32_t block) { return num_owners_[static_cast<size_t>(block)]; }
  int32_t take_free_block();
  void hold(int32_t block);
  void release(int32_t block);
  std::string list_fault(std::vector<bool>& is_free) const;

  int32_t block_size_;
  std::vector<int32_t> num_owners_;                  // tables the block is in
  std::vector<int32_t> empty_;                       // used as a stack
  std::list<int32_t> cached_;                        // the least recently freed first
  std::list<int32_t> others_;                        // nodes of the blocks that are not in cached_
  std::vector<std::list<int32_t>::iterator> nodes_;  // by block
  bool tracks_freed_ = false;
  std::vector<int32_t> freed_;  // may have been given out again meanwhile
  PrefixIndex index_;
};

}  // namespace outrider
