// The tokens that a draft may have proposed at one position, and what this shard's target row says
// of them. Used by verify() and the residual draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/shard_exchange.h"

namespace outrider {

class ListedTokens {
 public:
  ListedTokens() = default;  // of nothing
  // token must outlive this.
  ListedTokens(const DraftToken& token, const VocabShard& shard);

  std::span<const DraftCandidate> draft() const {
    return candidates_.empty() ? std::span(&only_, 1) : candidates_;
  }
  // Which of these was proposed.
  size_t drawn() const { return drawn_; }
  // Those on this shard, ascending, as indices into its rows.
  std::span<const int32_t> index() const { return index_; }

  // Asks for their raw logits in the row that judges them; scale() must follow the answer.
  void ask(const RowView& row, RowQuestions& questions);
  void scale(const RowView& row, float ceiling);
  // Of draft()[candidate]; kMasked when it is masked, above the ceiling, or on another shard.
  float scaled_of(size_t candidate) const {
    const int32_t place = places_[candidate];
    return place < 0 ? kMasked : values_[static_cast<size_t>(place)];
  }

 private:
  std::span<const DraftCandidate> candidates_;
  DraftCandidate only_;  // where there are none
  size_t drawn_ = 0;
  ShortList<int32_t, kUsualCandidates> index_;
  ShortList<int32_t, kUsualCandidates> places_;  // [draft().size()] in index_; -1: another shard's
  ShortList<float, kUsualCandidates> values_;    // [index_.size()] raw, then scaled
};

}  // namespace outrider
