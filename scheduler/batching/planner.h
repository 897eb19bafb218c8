// What runs next: the coordinator's picture of all requests. Pure bookkeeping on plain values: no
// device, no MPI, no clock. plan() says what every target rank computes in the next round, apply()
// takes in what they decided. One thread (the coordinator's) calls everything here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/batching/draft_ledger.h"
#include "scheduler/batching/planner_config.h"
#include "scheduler/batching/sequence_pool.h"
#include "scheduler/drafting/draft_news.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/pacing/goodput.h"
#include "scheduler/request.h"
#include "scheduler/round.h"

namespace outrider {

struct PlannerCounters {
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t num_free_blocks = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_prefix_queries = 0;  // tokens of sequences when first let in
  uint64_t num_prefix_hits = 0;     // of these, whose KV was there
};

class Planner {
 public:
  explicit Planner(const PlannerConfig& config);
  Planner(const Planner&) = delete;

  // Why a request can never run (prompt plus max_tokens too long, or more blocks than there are),
  // as a sentence; empty when it can. Thread-safe (reads only the config).
  std::string refusal(const Request& request) const;

  void add(Request request);
  // Takes the sequence out; its stream ends with kAborted. Unknown ids are ignored (it may just
  // have finished).
  void cancel(uint64_t request_id);
  // Ends all sequences with kAborted and this text; used when the job ends.
  void fail_all(const std::string& error);
  // Not let in yet, or preempted.
  int32_t num_waiting() const { return static_cast<int32_t>(pool_.waiting().size()); }

  bool idle() const { return pool_.empty(); }  // nothing running or waiting
  // True when some running sequence would verify more than it now has: it speculates with the draft
  // model, samples next round, and its block has not come. The coordinator waits for the draft only
  // then.
  bool wants_draft() const { return drafts_.lacks_tokens(); }

  // A block from the draft worker. Stale, malformed or unknown ones are dropped; returns whether it
  // was taken.
  bool offer(const PackedBlock& block) { return drafts_.offer(block); }
  // Whether the sequence would use more draft tokens than it has, by set_draft_lens().
  bool awaits_tokens(uint64_t sequence_id) const { return drafts_.awaits_tokens(sequence_id); }

  // The next round (its number is the coordinator's to fill in); sequences empty when
  // there is nothing to compute. Every plan must be followed by decide() or apply() of its decision
  // before the next.
  RoundPlan plan();
  // What streams get is left to the caller, who may have more urgent things to do: to be delivered
  // in this order, and before a cancel() or fail_all().
  [[nodiscard]] std::vector<PendingResult> decide(const RoundPlan& plan,
                                                  const RoundDecision& decision);
  // The same, delivered at once.
  void apply(const RoundPlan& plan, const RoundDecision& decision);
  // Of a plan that was decided and is not looked at any more.
  void recycle(RoundPlan plan) { drafts_.recycle(plan); }
  // Bonus drafts for the plan's sequences that were offered since it was made.
  std::vector<LateDraftToken> late_draft_tokens(const RoundPlan& plan) const;

  // What the draft worker must hear since the last call: closes, opens, commits (empty without a
  // draft model). Without `asks` sequences that draft asynchronously and wait for their next round
  // are left out: when it begins, the message that says so carries their new tokens as well.
  DraftRequest take_draft_request(bool asks = true) { return drafts_.take_request(asks); }
  // The draft worker is gone (false) or back (true). While gone, sequences run without drafts; when
  // back, they are opened to it anew.
  void set_draft_available(bool available) { drafts_.set_available(available); }

  // How long drafts are from now on: 0 to the configured length, which it is at first.
  void set_draft_len(int32_t draft_len);
  // Of these sequences instead, until their next choice.
  void set_draft_lens(std::span<const SequenceChoice> choices);
  // The running sequences that will sample next round, with what is at hand for them, the rows of
  // prompts that run with them, and how many come behind them. No clock here: waited_s and may_wait
  // are the caller's.
  RoundState draft_state() const;
  // Since the last call.
  DraftNews take_draft_news() { return drafts_.take_news(); }
  DraftCounters draft_counters() const { return drafts_.counters(); }

  PlannerCounters counters() const;
  // Checks the planner's own books (every KV block free or owned as often as its count says, and so
  // on): the first thing wrong as a sentence, empty when all is right. For tests and debugging.
  std::string fault() const { return pool_.fault(); }

 private:
  int64_t turn_of(const Request& request) const;
  // Takes the sequence out of everything; its last event has been or will be pushed by the caller.
  std::unique_ptr<Sequence> retire(uint64_t id);
  std::optional<PendingResult> apply_one(const SequencePlan& plan,
                                         const SequenceDecision& decision);
  void settle_blocks(Sequence& sequence, const SequenceDecision& decision);

  const PlannerConfig config_;
  SequencePool pool_;
  DraftLedger drafts_;
  std::vector<uint64_t> ends_;  // started on the ranks, not yet told to be over
  uint64_t num_arrivals_ = 0;
  uint64_t num_seen_ = 0;     // of them, by a plan
  int64_t num_rounds_ = 0;    // the only time there is
  PlannerCounters counters_;  // those since the start
  bool in_flight_ = false;    // planned and not yet applied
};

}  // namespace outrider
