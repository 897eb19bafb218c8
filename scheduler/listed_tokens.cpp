// See listed_tokens.h.
#include "scheduler/listed_tokens.h"

#include <algorithm>

#include "scheduler/rules.h"

namespace outrider {

ListedTokens::ListedTokens(const DraftToken& token, const VocabShard& shard)
    : draft_(draft_distribution(token)), first_token_(shard.begin) {
  index_.reserve(draft_.size());
  for (const DraftCandidate& candidate : draft_) {
    if (shard.contains(candidate.token)) index_.push_back(candidate.token - shard.begin);
  }
  std::sort(index_.begin(), index_.end());
  values_.resize(index_.size());
}

void ListedTokens::ask(const RowView& row, RowQuestions& questions) {
  if (index_.empty()) return;
  questions.reads.push_back({.logits = row.logits, .index = index_, .values = values_});
}

void ListedTokens::scale(const RowView& row, float ceiling) {
  RowView kept = row;
  kept.ceiling = ceiling;
  for (size_t i = 0; i < index_.size(); ++i) values_[i] = kept.scaled(index_[i], values_[i]);
}

float ListedTokens::scaled_of(int32_t token) const {
  const int32_t index = token - first_token_;
  const auto found = std::lower_bound(index_.begin(), index_.end(), index);
  if (found == index_.end() || *found != index) return kMasked;
  return values_[static_cast<size_t>(found - index_.begin())];
}

}  // namespace outrider
