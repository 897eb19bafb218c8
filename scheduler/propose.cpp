// See propose.h: one proposed token from the draft's own logits, under the same processors and
// filters as the target's.
#include "scheduler/propose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>
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

// keys: best first
std::vector<WeightedToken> weighted(std::span<const uint64_t> keys, float cut) {
  std::vector<WeightedToken> best;
  best.reserve(keys.size());
  float top = kMasked;
  for (uint64_t key : keys) {
    const float scaled = key_score(key);
    if (scaled < cut) break;
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

// The row and its best keys.
struct ScannedRow {
  RowView view;
  std::vector<uint64_t> keys;
  float max() const { return key_score(keys.front()); }
  bool may_be_guessed(uint64_t key) const { return key_score(key) >= max() - kGuessRange; }
};

RankedProposal greedy_choice(const ScannedRow& row, int32_t num_guesses) {
  RankedProposal proposal;
  proposal.drawn.token = key_token(row.keys.front());
  const auto end = std::find_if_not(
      row.keys.begin(), row.keys.end(), [&](uint64_t key) { return row.may_be_guessed(key); });
  const std::span<const uint64_t> ranked(row.keys.begin(), end);
  proposal.others = others_than(proposal.drawn.token, ranked, num_guesses, key_token);
  return proposal;
}

// The most that a token's noise can lift it, with what rounding its score may add.
bool may_reach(float scaled, uint64_t best) {
  const double margin = 1e-6 * (2.0 + std::abs(static_cast<double>(key_score(best))) +
                                std::abs(static_cast<double>(scaled)));
  return static_cast<double>(scaled) + kMaxGumbel + margin >= key_score(best);
}

// The others are ranked among the likeliest tokens only: where these hold little of the mass, none
// of them is a good guess. Mostly no other token can win the draw either, and the row is not looked
// at again.
RankedProposal coupled_choice(const DraftInput& input, const ScannedRow& row, int32_t num_guesses) {
  const bool filtered = filters(*input.params, row.view.size);
  const KeptRow kept =
      filtered ? truncated(input, row.view, row.max()) : KeptRow{row.view, kMasked};
  const NoiseKey noise = noise_for(input, Stream::kCoupled);
  std::vector<uint64_t> noisy;
  noisy.reserve(row.keys.size());
  uint64_t best = 0;
  const auto may_win = [&](float scaled) { return best == 0 || may_reach(scaled, best); };
  for (const uint64_t key : row.keys) {
    const float scaled = key_score(key);
    if (scaled < kept.cut || scaled > kept.view.ceiling) continue;
    if (!may_win(scaled) && !row.may_be_guessed(key)) break;
    noisy.push_back(noisy_key(static_cast<double>(scaled), key_token(key), noise));
    best = std::max(best, noisy.back());
  }
  const bool has_more = static_cast<int32_t>(row.keys.size()) < row.view.size &&
                        !(key_score(row.keys.back()) < kept.cut);
  if (has_more && may_win(key_score(row.keys.back())))
    best = draw_key(kept.view, kept.cut, noise, best);
  RankedProposal proposal;
  proposal.drawn.token = key_token(best);
  std::sort(noisy.begin(), noisy.end(), std::greater<uint64_t>());
  proposal.others = others_than(proposal.drawn.token, noisy, num_guesses, key_token);
  return proposal;
}

RankedProposal sampled_choice(const DraftInput& input, const ScannedRow& row, int32_t num_guesses) {
  std::vector<WeightedToken> best;
  std::vector<WeightedToken> ranked;
  if (input.params->typical_p < 1.0f) {  // needs the whole row, so all filters do without guesses
    const KeptRow kept = truncated(input, row.view, row.max());
    best = weighted(top_keys(kept.view, static_cast<int32_t>(row.keys.size())), kept.cut);
    ranked = best;
    apply_filters(SamplingParams{}, 0.0, best);
  } else {
    best = weighted(row.keys, kMasked);
    ranked = best;
    const bool needs_mass = input.params->top_p < 1.0f;
    const uint64_t mass = needs_mass ? row_mass(row.view, row.max(), kMasked) : 0;
    apply_filters(*input.params, static_cast<double>(mass) / kWeightOne, best);
  }
  RankedProposal proposal;
  proposal.drawn = draw_candidate(best, noise_for(input, Stream::kDraft));
  std::erase_if(ranked, [](const WeightedToken& entry) { return !(entry.weight > 1e-7); });
  proposal.others = others_than(
      proposal.drawn.token, ranked, num_guesses, [](const auto& entry) { return entry.token; });
  return proposal;
}

int32_t num_keys_for(const DraftInput& input, VerifyRule rule, int32_t num_guesses) {
  if (rule == VerifyRule::kGreedy) return 1 + std::clamp(num_guesses, 0, kMaxGuesses);
  if (rule == VerifyRule::kCoupled) return kRankedBehindNoise;
  return std::clamp(input.num_candidates, 1, kMaxDraftCandidates);
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
  const VerifyRule rule = resolve_rule(*input.params);
  ScannedRow row{.view = processed.row(0)};
  TopScan scan = scan_top(row.view, num_keys_for(input, rule, num_guesses));
  row.keys = std::move(scan.keys);
  if (scan.bad || row.keys.empty() || row.max() == kMasked) return nothing;
  switch (rule) {
    case VerifyRule::kGreedy:
      return greedy_choice(row, num_guesses);
    case VerifyRule::kCoupled:
      return coupled_choice(input, row, num_guesses);
    case VerifyRule::kStandard:
    case VerifyRule::kBlock:
      break;
  }
  return sampled_choice(input, row, num_guesses);
}

}  // namespace outrider
