// The tokens that a draft may have proposed at one position, and what this shard's target row says
// of them. Used by verify() and the residual draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"
#include "scheduler/row_scanner.h"
#include "scheduler/shard_exchange.h"

namespace outrider {

class ListedTokens {
 public:
  ListedTokens(const DraftToken& token, const VocabShard& shard);

  const std::vector<DraftCandidate>& draft() const { return draft_; }
  // Those on this shard, ascending, as indices into its rows.
  std::span<const int32_t> index() const { return index_; }

  // Asks for their raw logits in the row that judges them; scale() must follow the answer.
  void ask(const RowView& row, RowQuestions& questions);
  void scale(const RowView& row, float ceiling);
  // kMasked for a token that is masked, above the ceiling, or on another shard.
  float scaled_of(int32_t token) const;

 private:
  std::vector<DraftCandidate> draft_;
  int32_t first_token_;
  std::vector<int32_t> index_;
  std::vector<float> values_;  // [index_.size()] raw, then scaled
};

}  // namespace outrider
