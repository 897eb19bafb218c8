// propose() of verify.h: one proposed token from the draft's own logits, under the same processors
// and filters as the target's. Called by the draft for each token of a block.
#include <algorithm>
#include <vector>

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

int32_t coupled_choice(const DraftInput& input, const RowView& row, float max) {
  SoloExchange solo;
  const VocabShard whole{0, row.size, row.size};
  TruncationRow truncation{row, input.params, max, kMasked};
  truncate(std::span(&truncation, 1), whole, solo);
  return key_token(draw_key(row, truncation.cut, noise_for(input, Stream::kCoupled)));
}

struct WeightedToken {
  int32_t token = 0;
  float scaled = 0.0f;
  double weight = 0.0;
};

// The filters on the few best tokens. A top_p that needs more of them than there are keeps all.
void apply_filters(const SamplingParams& params, double mass, std::vector<WeightedToken>& best) {
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < best.size()) {
    best.resize(static_cast<size_t>(params.top_k));
    mass = 0.0;
    for (const WeightedToken& entry : best) mass += entry.weight;
  }
  size_t kept = best.size();
  if (params.top_p < 1.0f) {
    double reached = 0.0;
    for (kept = 0; kept < best.size(); ++kept) {
      if (kept > 0 && reached >= static_cast<double>(params.top_p) * mass) break;
      reached += best[kept].weight;
    }
  }
  // The maximum's weight is 1.
  while (kept > 1 && !(best[kept - 1].weight >= static_cast<double>(params.min_p))) --kept;
  while (kept > 1 && !(best[kept - 1].weight > 1e-7)) --kept;
  best.resize(kept);
}

DraftToken sampled_choice(const DraftInput& input, const RowView& row, float max) {
  const int32_t n = std::clamp(input.num_candidates, 1, kMaxDraftCandidates);
  std::vector<WeightedToken> best;
  for (uint64_t key : top_keys(row, n)) {
    const float scaled = key_score(key);
    const double below_max = static_cast<double>(scaled) - static_cast<double>(max);
    best.push_back({key_token(key), scaled, exact_exp(below_max)});
  }
  const bool needs_mass = input.params->top_p < 1.0f;
  const uint64_t mass = needs_mass ? row_mass(row, max, kMasked) : 0;
  apply_filters(*input.params, static_cast<double>(mass) / kWeightOne, best);
  double sum = 0.0;
  for (const WeightedToken& entry : best) sum += entry.weight;
  DraftToken proposal;
  uint64_t best_key = 0;
  const NoiseKey noise = noise_for(input, Stream::kDraft);
  for (const WeightedToken& entry : best) {
    // Drawn from exactly the floats that are sent: the target's test divides by them.
    const auto draft_prob = static_cast<float>(entry.weight / sum);
    proposal.candidates.push_back({entry.token, draft_prob});
    const double log_prob = exact_log(static_cast<double>(draft_prob));
    best_key = std::max(best_key, noisy_key(log_prob, entry.token, noise));
  }
  proposal.token = key_token(best_key);
  if (proposal.candidates.size() == 1) proposal.candidates.clear();
  return proposal;
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
                                 .row_stride = size},
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
