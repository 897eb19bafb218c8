// See listed_tokens.h.
#include "scheduler/verification/listed_tokens.h"

#include <algorithm>
#include <span>

#include "runtime/base/error.h"

namespace outrider {
namespace {

int32_t num_below(int32_t index, std::span<const int32_t> list) {
  int32_t num = 0;
  for (const int32_t one : list) num += one < index ? 1 : 0;
  return num;
}

}  // namespace

ListedTokens::ListedTokens(const DraftToken& token, const VocabShard& shard)
    : candidates_(token.candidates), only_{token.token, 1.0f} {
  const auto is_drawn = [&](const DraftCandidate& c) { return c.token == token.token; };
  const auto drawn = std::find_if(draft().begin(), draft().end(), is_drawn);
  OUTRIDER_CHECK(drawn != draft().end());
  drawn_ = static_cast<size_t>(drawn - draft().begin());
  ShortList<int32_t, kUsualCandidates> ours;  // in the draft's order
  for (const DraftCandidate& candidate : draft()) {
    if (shard.contains(candidate.token)) ours.push_back(candidate.token - shard.begin);
  }
  // They are few: a token's place is the number of lower ones.
  index_.resize(ours.size());
  places_.resize(draft().size());
  const int32_t* next = ours.begin();
  for (size_t c = 0; c < draft().size(); ++c) {
    const bool is_ours = shard.contains(draft()[c].token);
    places_[c] = is_ours ? num_below(*next, ours) : -1;
    if (is_ours) index_[static_cast<size_t>(places_[c])] = *next++;
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
