// The policy of one round: who computes how many rows. Used by the planner, once per round.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/batching/draft_ledger.h"
#include "scheduler/batching/planner.h"
#include "scheduler/batching/planner_config.h"
#include "scheduler/batching/sequence_pool.h"
#include "scheduler/round.h"

namespace outrider {

// 1. Every running sequence that only lacks its last token's row gets that row. When no block is
//    free, blocks that only held rejected draft rows are taken back, then the last in order is
//    preempted.
// 2. Their draft tokens share what is left, one level at a time, so that a short budget shortens
//    all drafts alike; when prompts wait to be computed, half of it is kept for them. Drafts never
//    preempt anybody.
// 3. Running sequences with more to compute (prompts, or texts after a preemption) get the rest in
//    order, in chunks.
// 4. Waiting ones are admitted in order while slots, rows and blocks last. None overtakes another,
//    and each is let in with at least one row: so no more ever run than the budget has rows. A
//    prefix whose KV is still there is not computed again.
// 5. Rows that are still left go to drafts: of sequences whose last chunk this is, too.
// The first in order always progresses, because it can take the blocks of all others: no livelock.
// Nobody starves: the order is fixed at arrival (Planner, turn), nobody who waits is overtaken from
// behind, whoever is preempted waits at its old place, and with aging only so many can come that go
// before a given one.
class RoundBuilder {
 public:
  // counters: preemptions and prefixes are added.
  RoundBuilder(const PlannerConfig& config,
               DraftLedger& drafts,
               SequencePool& pool,
               PlannerCounters& counters);

  // Fills plan.starts, plan.sequences and plan.awaits_bonus_drafts.
  void build(RoundPlan& plan);

 private:
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t num_committed_rows = 0;
    DraftProposal draft;  // what is at hand, then what is granted
    int32_t num_granted = 0;
  };

  void take_decodes();
  bool make_room(Sequence& sequence, int64_t num_positions);
  void reclaim_unused_blocks();
  int64_t num_prefill_rows_wanted() const;
  std::optional<KvPrefix> first_admissible() const;
  int64_t num_blocks_promised() const;
  void grant_drafts(int64_t num_rows_kept);
  bool grant_one(Entry& entry);
  void take_prefills();
  void take_chunk(Sequence& sequence);
  void admit(RoundPlan& plan);
  void count_prefix(Sequence& sequence);
  void finish(Entry& entry, RoundPlan& plan);

  const PlannerConfig& config_;
  DraftLedger& drafts_;
  SequencePool& pool_;
  PlannerCounters& counters_;
  int32_t rows_left_;
  std::vector<Entry> entries_;
};

}  // namespace outrider
