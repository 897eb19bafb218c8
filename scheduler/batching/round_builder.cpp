// See round_builder.h.
#include "scheduler/batching/round_builder.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {

RoundBuilder::RoundBuilder(const PlannerConfig& config,
                           DraftLedger& drafts,
                           SequencePool& pool,
                           PlannerCounters& counters)
    : config_(config),
      drafts_(drafts),
      pool_(pool),
      counters_(counters),
      rows_left_(config.max_num_batched_tokens) {}

void RoundBuilder::build(RoundPlan& plan) {
  take_decodes();
  grant_drafts(std::min<int64_t>(num_prefill_rows_wanted(), (rows_left_ + 1) / 2));
  take_prefills();
  admit(plan);
  grant_drafts(0);
  plan.sequences.reserve(entries_.size());
  for (Entry& entry : entries_) finish(entry, plan);
}

void RoundBuilder::take_decodes() {
  std::vector<Sequence*> decodes;
  decodes.reserve(pool_.running().size());
  for (const auto& [order, sequence] : pool_.running()) {
    if (sequence->num_uncomputed() == 1) decodes.push_back(sequence.get());
  }
  // In order, victims from the end: nobody who already has a row in this round loses blocks, and
  // whoever lost them before its turn is known by its empty table.
  entries_.reserve(decodes.size());
  for (Sequence* sequence : decodes) {
    const bool was_preempted = sequence->table.size() == 0;
    if (was_preempted || !make_room(*sequence, sequence->num_tokens())) continue;
    entries_.push_back({sequence, 1, drafts_.draft_for(*sequence), 0});
    --rows_left_;
  }
}

// False when `sequence` itself had to go.
bool RoundBuilder::make_room(Sequence& sequence, int64_t num_positions) {
  BlockTable& table = sequence.table;
  if (pool_.blocks.grow(table, num_positions)) return true;
  reclaim_unused_blocks();
  while (!pool_.blocks.grow(table, num_positions)) {
    ++counters_.num_preemptions;
    if (&pool_.preempt_last() == &sequence) return false;
  }
  return true;
}

void RoundBuilder::reclaim_unused_blocks() {
  for (const auto& [order, sequence] : pool_.running()) {
    pool_.blocks.shrink(sequence->table, sequence->num_tokens());
  }
}

int64_t RoundBuilder::num_prefill_rows_wanted() const {
  int64_t num_rows = 0;
  for (const auto& [order, sequence] : pool_.running()) {
    if (sequence->num_uncomputed() > 1) num_rows += sequence->num_uncomputed();
  }
  if (const std::optional<KvPrefix> prefix = first_admissible()) {
    num_rows += pool_.waiting().begin()->second->num_tokens();
    num_rows -= static_cast<int64_t>(prefix->blocks.size()) * config_.block_size;
  }
  return num_rows;
}

// What the first waiting sequence begins with, if it is let in: when all its tokens fit with the
// rows of its first verify, or, where nobody may be preempted, with all that it and the running
// ones can ever need. One that was thrown out before also leaves a block for each running sequence,
// or it would be thrown out again at the next block boundary.
std::optional<KvPrefix> RoundBuilder::first_admissible() const {
  if (pool_.waiting().empty()) return std::nullopt;
  const int32_t num_running = static_cast<int32_t>(pool_.running().size());
  if (num_running >= config_.max_num_seqs) return std::nullopt;
  const Sequence& first = *pool_.waiting().begin()->second;
  const bool reserves = config_.capacity_policy == CapacityPolicy::kGuaranteedNoEvict;
  const int64_t num_positions =
      reserves ? first.num_positions_at_most(config_.max_model_len)
               : static_cast<int64_t>(first.num_tokens()) +
                     first.draft_len_limit(
                         first.num_tokens(), config_.num_speculative_tokens, config_.max_model_len);
  KvPrefix prefix;
  if (config_.enable_prefix_caching) {
    prefix =
        pool_.blocks.find_prefix(first.tokens(), first.num_reusable(), first.request().cache_salt);
  }
  // What other tables hold costs nothing.
  int64_t num_needed = pool_.blocks.blocks_for(num_positions) + prefix.num_cached -
                       static_cast<int64_t>(prefix.blocks.size());
  if (reserves) num_needed += num_blocks_promised();
  if (first.num_preemptions > 0) num_needed += num_running;
  if (num_needed > pool_.blocks.num_free()) return std::nullopt;
  return prefix;
}

// Blocks that the running sequences do not hold yet and may come to need.
int64_t RoundBuilder::num_blocks_promised() const {
  int64_t num_blocks = 0;
  for (const auto& [order, sequence] : pool_.running()) {
    const int32_t most =
        pool_.blocks.blocks_for(sequence->num_positions_at_most(config_.max_model_len));
    num_blocks += std::max(0, most - sequence->table.size());
  }
  return num_blocks;
}

void RoundBuilder::grant_drafts(int64_t num_rows_kept) {
  rows_left_ -= static_cast<int32_t>(num_rows_kept);
  bool granted = true;
  while (granted) {
    granted = false;
    for (Entry& entry : entries_) granted = grant_one(entry) || granted;
  }
  rows_left_ += static_cast<int32_t>(num_rows_kept);
}

bool RoundBuilder::grant_one(Entry& entry) {
  if (rows_left_ == 0 || entry.num_granted == static_cast<int32_t>(entry.draft.tokens.size()))
    return false;
  const int64_t num_positions =
      static_cast<int64_t>(entry.sequence->num_tokens()) + entry.num_granted + 1;
  if (!pool_.blocks.grow(entry.sequence->table, num_positions)) return false;
  ++entry.num_granted;
  --rows_left_;
  return true;
}

void RoundBuilder::take_prefills() {
  for (const auto& [order, sequence] : pool_.running()) {
    if (sequence->num_uncomputed() > 1 && rows_left_ > 0) take_chunk(*sequence);
  }
}

void RoundBuilder::take_chunk(Sequence& sequence) {
  Entry entry;
  entry.sequence = &sequence;
  entry.num_committed_rows = std::min(sequence.num_uncomputed(), rows_left_);
  rows_left_ -= entry.num_committed_rows;
  if (entry.num_committed_rows == sequence.num_uncomputed()) {
    entry.draft = drafts_.draft_for(sequence);
  }
  entries_.push_back(std::move(entry));
}

void RoundBuilder::admit(RoundPlan& plan) {
  while (rows_left_ > 0) {
    const std::optional<KvPrefix> prefix = first_admissible();
    if (!prefix) return;
    Sequence& sequence = pool_.admit_first(*prefix);
    if (!sequence.scheduled_at) {
      plan.starts.push_back(sequence.start());
      sequence.scheduled_at = JobClock::now();
      count_prefix(sequence);
    }
    take_chunk(sequence);
  }
}

void RoundBuilder::count_prefix(Sequence& sequence) {
  sequence.num_cached_prompt_tokens = sequence.num_computed();
  if (!config_.enable_prefix_caching || sequence.num_reusable() == 0) return;
  counters_.num_prefix_queries += static_cast<uint64_t>(sequence.num_tokens());
  counters_.num_prefix_hits += static_cast<uint64_t>(sequence.num_computed());
}

void RoundBuilder::finish(Entry& entry, RoundPlan& plan) {
  Sequence& sequence = *entry.sequence;
  SequencePlan& planned = plan.sequences.emplace_back();
  planned.sequence_id = sequence.id();
  planned.round = sequence.round();
  planned.first_position = sequence.num_computed();
  planned.num_committed_rows = entry.num_committed_rows;
  // Every row of the plan writes at or after first_position.
  OUTRIDER_CHECK(sequence.table.num_shared() * config_.block_size <= planned.first_position);
  entry.draft.tokens.resize(static_cast<size_t>(entry.num_granted));
  planned.draft = std::move(entry.draft.tokens);
  if (entry.num_granted > 0) planned.source = entry.draft.source;
  sequence.table.tell(planned);
  if (entry.num_committed_rows < sequence.num_uncomputed()) return;
  planned.bonus_draft = drafts_.begin_round(sequence, entry.num_granted);
  if (!planned.bonus_draft && drafts_.awaits_bonus_draft(sequence)) plan.awaits_bonus_drafts = true;
}

}  // namespace outrider
