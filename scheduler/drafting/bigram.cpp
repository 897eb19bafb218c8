// See bigram.h.
#include "scheduler/drafting/bigram.h"

#include <algorithm>

#include "scheduler/drafting/draft_choice.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/sampling/logits_processor.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

// A row's sum of counts never passes this, so every count fits into its 16 bits.
constexpr uint32_t kMostCounted = 32768;

using Entry = TokenCounts::Entry;

// Descending weight, then ascending id.
bool comes_before(const Entry& a, const Entry& b) {
  return a.weight() != b.weight() ? a.weight() > b.weight() : a.token < b.token;
}

// In that order; weights relative to the first, under the temperature.
std::vector<WeightedToken> weighted(std::span<const Entry> entries, float temperature) {
  std::vector<Entry> sorted(entries.begin(), entries.end());
  std::sort(sorted.begin(), sorted.end(), comes_before);
  std::vector<WeightedToken> best;
  best.reserve(sorted.size());
  const double most = exact_log(static_cast<double>(sorted.front().weight()));
  for (const Entry& entry : sorted) {
    const double below = exact_log(static_cast<double>(entry.weight())) - most;
    best.push_back({entry.token, exact_exp(below / static_cast<double>(temperature))});
  }
  return best;
}

int32_t coupled_choice(std::span<const WeightedToken> best, const NoiseKey& noise) {
  uint64_t best_key = 0;
  for (const WeightedToken& entry : best) {
    best_key = std::max(best_key, noisy_key(exact_log(entry.weight), entry.token, noise));
  }
  return key_token(best_key);
}

// The proposal for one position; draft_prob is 1 on the token for the rules without a distribution.
DraftToken propose_one(std::span<const Entry> entries,
                       const BigramInput& input,
                       uint32_t position) {
  const SamplingParams& params = *input.params;
  const VerifyRule rule = resolve_rule(params);
  DraftToken proposal;
  if (rule == VerifyRule::kGreedy) {
    proposal.token = std::min_element(entries.begin(), entries.end(), comes_before)->token;
    return proposal;
  }
  std::vector<WeightedToken> best = weighted(entries, params.temperature);
  double mass = 0.0;
  for (const WeightedToken& entry : best) mass += entry.weight;
  const bool coupled = rule == VerifyRule::kCoupled;
  const auto most = static_cast<size_t>(std::clamp(input.num_candidates, 1, kMaxDraftCandidates));
  if (!coupled && best.size() > most) best.resize(most);
  apply_filters(params, mass, best);
  if (coupled) {
    proposal.token = coupled_choice(best, {params.noise_seed, position, Stream::kCoupled, 0});
    return proposal;
  }
  return draw_candidate(best, {params.noise_seed, position, Stream::kDraft, input.round});
}

}  // namespace

void TokenCounts::add(int32_t token, size_t capacity) {
  if (++total_ > kMostCounted) halve();
  size_t rarest = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].token == token) {
      ++entries_[i].count;
      return;
    }
    if (entries_[i].count < entries_[rarest].count) rarest = i;
  }
  if (entries_.size() < capacity) {
    entries_.push_back({token, 1, 0});
    return;
  }
  Entry& entry = entries_[rarest];
  entry = {token, static_cast<uint16_t>(entry.count + 1), entry.count};
}

// What has become nothing leaves; a count stays above its error.
void TokenCounts::halve() {
  total_ = 1;
  for (Entry& entry : entries_) {
    entry.count = static_cast<uint16_t>(entry.count / 2);
    entry.error = static_cast<uint16_t>(entry.error / 2);
    total_ += entry.count;
  }
  std::erase_if(entries_, [](const Entry& entry) { return entry.weight() <= 0; });
}

BigramModel::BigramModel(CountingOrder order, int32_t vocab_size)
    : order_(order), vocab_size_(std::clamp(vocab_size, 0, kMaxVocabSize)) {
  if (order == CountingOrder::kBigram) by_previous_.resize(static_cast<size_t>(vocab_size_));
}

bool BigramModel::in_vocabulary(int32_t token) const { return token >= 0 && token < vocab_size_; }

void BigramModel::learn(std::span<const int32_t> tokens, size_t begin) {
  for (size_t i = begin; i < tokens.size(); ++i) {
    if (!in_vocabulary(tokens[i])) continue;
    frequent_.add(tokens[i], kMostFrequent);
    if (order_ == CountingOrder::kUnigram || i == 0 || !in_vocabulary(tokens[i - 1])) continue;
    by_previous_[static_cast<size_t>(tokens[i - 1])].add(tokens[i], kFollowers);
  }
}

std::span<const TokenCounts::Entry> BigramModel::followers(int32_t previous) const {
  if (order_ == CountingOrder::kBigram && in_vocabulary(previous)) {
    const auto known = by_previous_[static_cast<size_t>(previous)].entries();
    if (!known.empty()) return known;
  }
  return frequent_.entries();
}

std::vector<DraftToken> propose_bigram(const BigramModel& model, const BigramInput& input) {
  std::vector<DraftToken> draft;
  int32_t previous = input.tokens.empty() ? -1 : input.tokens.back();
  for (int32_t i = 0; i < input.draft_len; ++i) {
    const auto entries = model.followers(previous);
    if (entries.empty()) break;
    const auto position = static_cast<uint32_t>(input.tokens.size()) + static_cast<uint32_t>(i);
    draft.push_back(propose_one(entries, input, position));
    previous = draft.back().token;
  }
  return draft;
}

}  // namespace outrider
