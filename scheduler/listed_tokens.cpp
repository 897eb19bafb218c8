// See listed_tokens.h.
#include "scheduler/listed_tokens.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {

ListedTokens::ListedTokens(const DraftToken& token, const VocabShard& shard)
    : candidates_(token.candidates), only_{token.token, 1.0f} {
  const auto is_drawn = [&](const DraftCandidate& c) { return c.token == token.token; };
  const auto drawn = std::find_if(draft().begin(), draft().end(), is_drawn);
  OUTRIDER_CHECK(drawn != draft().end());
  drawn_ = static_cast<size_t>(drawn - draft().begin());
  for (const DraftCandidate& candidate : draft()) {
    if (shard.contains(candidate.token)) index_.push_back(candidate.token - shard.begin);
  }
  std::sort(index_.begin(), index_.end());
  values_.resize(index_.size());
  for (const DraftCandidate& candidate : draft()) {
    const int32_t index = candidate.token - shard.begin;
    const auto found = std::lower_bound(index_.begin(), index_.end(), index);
    const bool is_ours = found != index_.end() && *found == index;
    places_.push_back(is_ours ? static_cast<int32_t>(found - index_.begin()) : -1);
  }
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

}  // namespace outrider
