// See propose.h: one proposed token from the draft's own logits, under the same processors and
// filters as the target's.
#include "scheduler/propose.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "scheduler/draft_choice.h"
#include "scheduler/logits_processor.h"
#include "scheduler/statistics.h"
#include "scheduler/truncation.h"

namespace outrider {
namespace {

// Scaled values so far below the best one are no guesses: e^-16 of its weight.
constexpr float kGuessRange = 16.0f;
constexpr int32_t kRankedBehindNoise = 32;

NoiseKey noise_for(const DraftInput& input, Stream stream) {
  const auto position = static_cast<uint32_t>(input.tokens.size() + input.drafted.size());
  return {input.params->noise_seed, position, stream, input.round};
}

struct KeptRow {
  RowView view;
  float cut = kMasked;
};

// By the target's own filters.
KeptRow truncated(const DraftInput& input, const RowView& row, float max) {
  SoloExchange solo;
  TruncationRow truncation{.view = row, .params = input.params, .max = max};
  truncate(std::span(&truncation, 1), {0, row.size, row.size}, solo);
  KeptRow kept{row, truncation.cut};
  kept.view.ceiling = truncation.ceiling;
  return kept;
}

std::vector<WeightedToken> likeliest(const KeptRow& kept, int32_t n) {
  std::vector<WeightedToken> best;
  float top = kMasked;
  for (uint64_t key : top_keys(kept.view, n)) {
    const float scaled = key_score(key);
    if (scaled < kept.cut) break;
    if (best.empty()) top = scaled;
    best.push_back(
        {key_token(key), exact_exp(static_cast<double>(scaled) - static_cast<double>(top))});
  }
  return best;
}

// Of tokens in order of their rank.
template <typename Ranked, typename TokenOf>
Guesses others_than(int32_t drawn, const Ranked& ranked, int32_t num_guesses, TokenOf token_of) {
  Guesses others;
  for (const auto& entry : ranked) {
    if (others.full() || static_cast<int32_t>(others.tokens().size()) >= num_guesses) break;
    if (token_of(entry) != drawn) others.add(token_of(entry));
  }
  return others;
}

RankedProposal greedy_choice(const RowView& row, float max, int32_t token, int32_t num_guesses) {
  RankedProposal proposal;
  proposal.drawn.token = token;
  if (num_guesses <= 0) return proposal;
  std::vector<uint64_t> keys = top_keys(row, num_guesses + 1);
  std::erase_if(keys, [&](uint64_t key) { return !(key_score(key) >= max - kGuessRange); });
  proposal.others = others_than(token, keys, num_guesses, key_token);
  return proposal;
}

// The others are ranked among the likeliest tokens only: where these hold little of the mass, none
// of them is a good guess.
RankedProposal coupled_choice(const DraftInput& input,
                              const RowView& row,
                              float max,
                              int32_t num_guesses) {
  const KeptRow kept = truncated(input, row, max);
  const NoiseKey noise = noise_for(input, Stream::kCoupled);
  RankedProposal proposal;
  proposal.drawn.token = key_token(draw_key(kept.view, kept.cut, noise));
  if (num_guesses <= 0) return proposal;
  std::vector<uint64_t> keys = top_keys(kept.view, kRankedBehindNoise);
  std::erase_if(keys, [&](uint64_t key) {
    return !(key_score(key) >= kept.cut && key_score(key) >= max - kGuessRange);
  });
  for (uint64_t& key : keys)
    key = noisy_key(static_cast<double>(key_score(key)), key_token(key), noise);
  std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
  proposal.others = others_than(proposal.drawn.token, keys, num_guesses, key_token);
  return proposal;
}

RankedProposal sampled_choice(const DraftInput& input,
                              const RowView& row,
                              float max,
                              int32_t num_guesses) {
  const int32_t n = std::clamp(input.num_candidates, 1, kMaxDraftCandidates);
  const bool whole_row = input.params->typical_p < 1.0f;  // all filters do without guesses
  std::vector<WeightedToken> best =
      whole_row ? likeliest(truncated(input, row, max), n) : likeliest({row, kMasked}, n);
  std::vector<WeightedToken> ranked = best;
  if (whole_row) {
    apply_filters(SamplingParams{}, 0.0, best);
  } else {
    const bool needs_mass = input.params->top_p < 1.0f;
    const uint64_t mass = needs_mass ? row_mass(row, max, kMasked) : 0;
    apply_filters(*input.params, static_cast<double>(mass) / kWeightOne, best);
  }
  RankedProposal proposal;
  proposal.drawn = draw_candidate(best, noise_for(input, Stream::kDraft));
  std::erase_if(ranked, [](const WeightedToken& entry) { return !(entry.weight > 1e-7); });
  proposal.others = others_than(
      proposal.drawn.token, ranked, num_guesses, [](const auto& entry) { return entry.token; });
  return proposal;
}

}  // namespace

DraftToken propose(const DraftInput& input) { return propose_ranked(input, 0).drawn; }

RankedProposal propose_ranked(const DraftInput& input, int32_t num_guesses) {
  RankedProposal nothing;
  nothing.drawn.token = -1;
  const int32_t size = std::min(input.vocab_size, input.target_vocab_size);
  if (size <= 0 || size > kMaxVocabSize) return nothing;
  const VocabShard whole{0, size, size};
  const ProcessedRows processed({.params = input.params,
                                 .tokens = input.tokens,
                                 .num_prompt_tokens = input.num_prompt_tokens,
                                 .draft = input.drafted,
                                 .first_row = static_cast<int32_t>(input.drafted.size()),
                                 .num_rows = 1,
                                 .logits = input.logits,
                                 .row_stride = size,
                                 .mask = input.mask},
                                whole);
  const RowView row = processed.row(0);
  const RowScan scan = scan_row(row);
  const float max = key_score(scan.key);
  if (scan.bad || max == kMasked) return nothing;
  switch (resolve_rule(*input.params)) {
    case VerifyRule::kGreedy:
      return greedy_choice(row, max, key_token(scan.key), num_guesses);
    case VerifyRule::kCoupled:
      return coupled_choice(input, row, max, num_guesses);
    case VerifyRule::kStandard:
    case VerifyRule::kBlock:
      break;
  }
  return sampled_choice(input, row, max, num_guesses);
}

}  // namespace outrider
