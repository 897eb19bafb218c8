// All live sequences: waiting ones without KV blocks, running ones with. Owns both and the blocks,
// so that a sequence cannot leave without giving its blocks back. Used by the planner and the round
// builder on the coordinator's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "scheduler/batching/kv_blocks.h"
#include "scheduler/batching/sequence.h"

namespace outrider {

class SequencePool {
 public:
  using Queue =
      std::map<SequenceOrder, std::unique_ptr<Sequence>>;  // iterated first to last: best first

  SequencePool(int32_t num_blocks, int32_t block_size) : blocks(num_blocks, block_size) {}

  const Queue& waiting() const { return waiting_; }
  const Queue& running() const { return running_; }
  bool empty() const { return waiting_.empty() && running_.empty(); }

  void add(std::unique_ptr<Sequence> sequence);
  Sequence* find(uint64_t id) const;  // nullptr when it is not (or no longer) here
  // Takes the sequence out; its blocks are free again.
  std::unique_ptr<Sequence> remove(uint64_t id);

  // The first waiting sequence starts running with blocks for all its tokens, `prefix` at the
  // front. The caller has seen that they are free.
  Sequence& admit_first(const KvPrefix& prefix);
  // The last running sequence loses its blocks and waits again, ahead of all that came after it.
  Sequence& preempt_last();

  // The first thing wrong with the books as a sentence; empty when they are right.
  std::string fault() const;

  KvBlocks blocks;

 private:
  Queue waiting_;
  Queue running_;
  std::map<uint64_t, Sequence*> by_id_;
};

}  // namespace outrider
