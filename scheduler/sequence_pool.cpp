// See sequence_pool.h.
#include "scheduler/sequence_pool.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace outrider {

void SequencePool::add(std::unique_ptr<Sequence> sequence) {
  const bool is_new = order_of_.emplace(sequence->id(), sequence->order()).second;
  OUTRIDER_CHECK(is_new);
  const SequenceOrder order = sequence->order();
  waiting_.emplace(order, std::move(sequence));
}

Sequence* SequencePool::find(uint64_t id) const {
  const auto order = order_of_.find(id);
  if (order == order_of_.end()) return nullptr;
  auto found = running_.find(order->second);
  if (found == running_.end()) found = waiting_.find(order->second);
  return found->second.get();
}

std::unique_ptr<Sequence> SequencePool::remove(uint64_t id) {
  const auto order = order_of_.find(id);
  OUTRIDER_CHECK(order != order_of_.end());
  auto node = running_.extract(order->second);
  if (node.empty()) node = waiting_.extract(order->second);
  order_of_.erase(order);
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
  sequence.was_preempted = true;
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
  if (order_of_.size() != running_.size() + waiting_.size()) return "the index is not exact";
  return blocks.fault(tables);
}

}  // namespace outrider
