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
  // By index; who it is stands behind it.
  ShortList<uint64_t, kUsualCandidates> ours;
  for (size_t c = 0; c < draft().size(); ++c) {
    const int32_t token_id = draft()[c].token;
    places_.push_back(-1);
    if (shard.contains(token_id))
      ours.push_back(static_cast<uint64_t>(token_id - shard.begin) << 32 | c);
  }
  std::sort(ours.begin(), ours.end());
  for (const uint64_t one : ours) {
    places_[static_cast<uint32_t>(one)] = static_cast<int32_t>(index_.size());
    index_.push_back(static_cast<int32_t>(one >> 32));
  }
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

}  // namespace outrider
