// propose() of verify.h: one proposed token from the draft's own logits, under the same processors
// and filters as the target's. Called by the draft for each token of a block.
#include <algorithm>
#include <vector>

#include "scheduler/draft_choice.h"
#include "scheduler/logits_processor.h"
#include "scheduler/statistics.h"
#include "scheduler/truncation.h"
#include "scheduler/verify.h"

namespace outrider {
namespace {

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

int32_t coupled_choice(const DraftInput& input, const RowView& row, float max) {
  const KeptRow kept = truncated(input, row, max);
  return key_token(draw_key(kept.view, kept.cut, noise_for(input, Stream::kCoupled)));
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

DraftToken sampled_choice(const DraftInput& input, const RowView& row, float max) {
  const int32_t n = std::clamp(input.num_candidates, 1, kMaxDraftCandidates);
  std::vector<WeightedToken> best;
  if (input.params->typical_p < 1.0f) {  // needs the whole row, so all filters do without guesses
    best = likeliest(truncated(input, row, max), n);
    apply_filters(SamplingParams{}, 0.0, best);
    return draw_candidate(best, noise_for(input, Stream::kDraft));
  }
  best = likeliest({row, kMasked}, n);
  const bool needs_mass = input.params->top_p < 1.0f;
  const uint64_t mass = needs_mass ? row_mass(row, max, kMasked) : 0;
  apply_filters(*input.params, static_cast<double>(mass) / kWeightOne, best);
  return draw_candidate(best, noise_for(input, Stream::kDraft));
}

}  // namespace

DraftToken propose(const DraftInput& input) {
  DraftToken nothing;
  nothing.token = -1;
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
  DraftToken proposal;
  switch (resolve_rule(*input.params)) {
    case VerifyRule::kGreedy:
      proposal.token = key_token(scan.key);
      return proposal;
    case VerifyRule::kCoupled:
      proposal.token = coupled_choice(input, row, max);
      return proposal;
    case VerifyRule::kStandard:
    case VerifyRule::kBlock:
      break;
  }
  return sampled_choice(input, row, max);
}

}  // namespace outrider
