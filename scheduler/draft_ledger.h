// What the draft worker must hear and what it has answered. Messages are derived from the
// sequences' state when they are asked for, not queued: a sequence that comes and goes between two
// requests is never mentioned, and a draft that was away is simply told everything again. Used by
// the planner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/bigram.h"
#include "scheduler/planner.h"
#include "scheduler/round.h"
#include "scheduler/sequence_pool.h"

namespace outrider {

class DraftLedger {
 public:
  explicit DraftLedger(const PlannerConfig& config);

  DraftRequest take_request(const SequencePool& pool);
  bool offer(const SequencePool& pool, const DraftBlock& block);
  bool wants(const SequencePool& pool) const;
  // The draft tokens at hand for the sequence's next sampling round; at most its limit.
  std::vector<DraftToken> draft_for(const Sequence& sequence) const;

  // Blocks for the round before are void; a draft that learns from what is served learns the new
  // tokens. Proposals then differ with the other requests of the server, which no text may show:
  // the verification sees to that.
  void sequence_committed(Sequence& sequence);
  void sequence_ended(const Sequence& sequence);
  void set_available(const SequencePool& pool, bool available);
  // Of what is asked for from now on; at most the configured length. At 0 the draft hears nothing
  // of new tokens until it is wanted again.
  void set_draft_len(int32_t draft_len) { draft_len_ = draft_len; }

 private:
  bool uses_model() const;
  int32_t limit(const Sequence& sequence) const;
  void describe(Sequence& sequence, DraftRequest& request) const;
  bool well_formed(const Sequence& sequence, const DraftBlock& block) const;
  std::vector<DraftToken> counted_draft(const Sequence& sequence, int32_t draft_len) const;

  PlannerConfig config_;
  int32_t draft_len_;  // now
  bool available_ = true;
  uint64_t serial_ = 0;
  std::vector<uint64_t> closes_;
  std::optional<BigramModel> served_;  // learned from the sequences
};

}  // namespace outrider
