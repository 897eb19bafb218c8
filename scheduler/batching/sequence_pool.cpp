// See sequence_pool.h.
#include "scheduler/batching/sequence_pool.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {

void SequencePool::add(std::unique_ptr<Sequence> sequence) {
  const bool is_new = by_id_.emplace(sequence->id(), sequence.get()).second;
  OUTRIDER_CHECK(is_new);
  const SequenceOrder order = sequence->order();
  waiting_.emplace(order, std::move(sequence));
}

Sequence* SequencePool::find(uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::unique_ptr<Sequence> SequencePool::remove(uint64_t id) {
  const auto found = by_id_.find(id);
  OUTRIDER_CHECK(found != by_id_.end());
  const SequenceOrder order = found->second->order();
  by_id_.erase(found);
  auto node = running_.extract(order);
  if (node.empty()) node = waiting_.extract(order);
  blocks.shrink(node.mapped()->table, 0);
  return std::move(node.mapped());
}

Sequence& SequencePool::admit_first(const KvPrefix& prefix) {
  auto node = waiting_.extract(waiting_.begin());
  Sequence& sequence = *node.mapped();
  blocks.share(sequence.table, prefix);
  sequence.start_after(sequence.table.size() * blocks.block_size());
  OUTRIDER_CHECK(blocks.grow(sequence.table, sequence.num_tokens()));
  running_.insert(std::move(node));
  return sequence;
}

Sequence& SequencePool::preempt_last() {
  OUTRIDER_CHECK(!running_.empty());
  auto node = running_.extract(std::prev(running_.end()));
  Sequence& sequence = *node.mapped();
  blocks.shrink(sequence.table, 0);
  sequence.forget_kv();
  ++sequence.num_preemptions;
  waiting_.insert(std::move(node));
  return sequence;
}

std::string SequencePool::fault() const {
  std::vector<const BlockTable*> tables;
  for (const auto& [order, sequence] : running_) {
    tables.push_back(&sequence->table);
    if (sequence->num_uncomputed() < 1) {
      return fmt::format("sequence {} has nothing to compute", sequence->id());
    }
    if (sequence->table.size() < blocks.blocks_for(sequence->num_computed())) {
      return fmt::format("sequence {} has more KV than blocks", sequence->id());
    }
    if (sequence->table.num_shared() * blocks.block_size() > sequence->num_computed()) {
      return fmt::format("sequence {} may write shared blocks", sequence->id());
    }
  }
  for (const auto& [order, sequence] : waiting_) {
    if (sequence->table.size() > 0 || sequence->num_computed() > 0) {
      return fmt::format("sequence {} waits and has KV", sequence->id());
    }
  }
  if (by_id_.size() != running_.size() + waiting_.size()) return "the index is not exact";
  return blocks.fault(tables);
}

}  // namespace outrider
