// What the draft worker must hear and what it has answered. Messages are derived from the
// sequences' state when they are asked for, not queued: a sequence that comes and goes between two
// requests is never mentioned, and a draft that was away is simply told everything again. Used by
// the planner.
//
// With a sequence that drafts asynchronously the draft hears when its round begins, and prepares
// blocks for the outcomes while the ranks compute; they wait in the sequence's speculation cache
// until the round is decided. What the draft sends is judged by its round and the text it stands
// behind alone, so it may come in any order, late, twice or not at all.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/batching/own_drafts.h"
#include "scheduler/batching/planner_config.h"
#include "scheduler/batching/sequence_pool.h"
#include "scheduler/drafting/draft_news.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/pacing/goodput.h"
#include "scheduler/round.h"

namespace outrider {

class DraftLedger {
 public:
  // pool: the planner's, outlives this.
  DraftLedger(const PlannerConfig& config, const SequencePool& pool);

  // What the draft has not heard yet. Of sequences that draft asynchronously: which of their rounds
  // have begun, and with `asks` the new text of those that wait for their next round.
  DraftRequest take_request(bool asks);
  bool offer(const PackedBlock& block);
  // Whether that sequence would use more of a block than is there: more of it is news.
  bool awaits_tokens(uint64_t sequence_id) const;
  // Whether the block of some sequence that samples next is not there, or shorter than asked.
  bool lacks_tokens() const;
  RoundState state() const;
  // The draft tokens at hand for the sequence's next sampling round; at most its limit.
  DraftProposal draft_for(const Sequence& sequence);
  // The memory of a plan that is over serves the next.
  void recycle(RoundPlan& plan);

  // The sequence samples in the round being planned, with so many of its draft tokens. Returns the
  // token at hand behind them, when it is to be judged in the last row.
  std::optional<DraftToken> begin_round(Sequence& sequence, int32_t num_granted);
  // Whether a token that comes while the ranks compute is to be judged there.
  bool awaits_bonus_draft(const Sequence& sequence) const;
  // That token, once it is here.
  std::optional<DraftToken> late_draft_token(const Sequence& sequence) const;

  // Blocks for the round before are void, and what was prepared for its outcome is looked up. A
  // draft that learns from what is served learns the new tokens. Proposals then differ with the
  // other requests of the server, which no text may show: the verification sees to that.
  void sequence_committed(Sequence& sequence,
                          const SequencePlan& plan,
                          const SequenceDecision& decision);
  void sequence_ended(const Sequence& sequence);
  void set_available(bool available);
  // Whether drafts are made here, which a request's grammar then shapes.
  bool shapes_by_grammar() const { return own_.any(); }
  // Of what is asked for from now on; at most the configured length. At 0 the draft hears nothing
  // of new tokens until it is wanted again.
  void set_draft_len(int32_t draft_len) { draft_len_ = draft_len; }
  const DraftCounters& counters() const { return counters_; }
  void begin_results() {
    news_.results.clear();
    news_.results.reserve(pool_.running().size());
  }
  DraftNews take_news() { return std::exchange(news_, {}); }

 private:
  bool uses_model() const;
  bool drafts_async(const Sequence& sequence) const;
  int32_t limit_now(const Sequence& sequence) const;
  int32_t limit_next(const Sequence& sequence) const;
  int32_t limit(const Sequence& sequence, int32_t num_tokens, int32_t chosen) const;
  void add_prompts(RoundState* state) const;
  std::optional<int32_t> look_up(Sequence& sequence);
  void describe(Sequence& sequence, bool asks, DraftRequest& request) const;
  bool open(Sequence& sequence, DraftRequest& request) const;
  void commit(Sequence& sequence, int32_t draft_len, DraftRequest& request) const;
  bool take_block(Sequence& sequence, const PackedBlock& block);
  bool take_prepared(Sequence& sequence, const PackedBlock& block);
  size_t most_tokens(const Sequence& sequence) const;
  size_t num_well_formed(const Sequence& sequence, size_t first) const;
  void offer_backup(Sequence& sequence, SequenceState& state) const;
  DraftResult result_of(const Sequence& sequence,
                        const SequencePlan& plan,
                        const SequenceDecision& decision) const;

  PlannerConfig config_;
  const SequencePool& pool_;
  int32_t draft_len_;  // now
  bool available_ = true;
  std::vector<uint64_t> closes_;
  OwnDrafts own_;
  DraftCounters counters_;
  DraftNews news_;
  std::vector<std::vector<DraftToken>> spare_drafts_;
};

}  // namespace outrider
