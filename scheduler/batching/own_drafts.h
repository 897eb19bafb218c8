// The draft sources that need no draft model: the coordinator's own (n-gram, unigram, bigram, and
// what a request's grammar forces). They draft where there is no draft model, and as a backup where
// its block is not there. The same text gives the same proposal, but for what bigrams have learned.
// Used by the draft ledger.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/batching/planner_config.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/drafting/bigram.h"

namespace outrider {

class OwnDrafts {
 public:
  explicit OwnDrafts(const PlannerConfig& config);

  // Whether there is any source at all.
  bool any() const { return method_ != DraftMethod::kNone; }
  // At most draft_len tokens; what a grammar forces is added to them, up to longest.
  DraftProposal propose(const Sequence& sequence, int32_t draft_len, int32_t longest) const;
  // A longer draft gains less than it costs when its next token is rejected more often than not.
  bool forced_tokens_pay() const { return shaped_.pays(); }

  // The sequence has new tokens, behind such a draft. Who learns from what is served learns them.
  void learn(Sequence& sequence, int32_t num_drafted, int32_t num_accepted);

 private:
  BlockSource source() const;
  DraftProposal unshaped(const Sequence& sequence, int32_t draft_len) const;
  void shape_by_grammar(const Sequence& sequence, int32_t longest, DraftProposal& proposal) const;

  // How drafts fared that grammars shaped, lately.
  class ShapedDrafts {
   public:
    void count(int64_t num_drafted, int64_t num_accepted);
    bool pays() const { return 2 * num_accepted_ >= num_judged_; }

   private:
    static constexpr int64_t kMostJudged = 256;  // then what is older counts half
    static constexpr int64_t kTrusted = 8;       // at the start: one rejection decides nothing
    int64_t num_judged_ = kTrusted;              // the tokens up to the first that was rejected
    int64_t num_accepted_ = kTrusted;
  };

  const PlannerConfig config_;
  const DraftMethod method_;
  std::optional<BigramModel> served_;  // learned from the sequences
  ShapedDrafts shaped_;
};

}  // namespace outrider
