// See rules.h, and verify.h for valid_draft and resolve_rule.
#include "scheduler/rules.h"

#include <algorithm>

#include "runtime/base/exact_math.h"
#include "scheduler/logits_processor.h"
#include "scheduler/verify.h"

namespace outrider {

bool standard_accepts(double uniform, float draft_prob, uint64_t weight, uint64_t mass) {
  const double threshold =
      exact_mul(exact_mul(uniform, static_cast<double>(draft_prob)), static_cast<double>(mass));
  return threshold < static_cast<double>(weight);
}

double residual_weight(double target_weight, float draft_prob, uint64_t mass) {
  const double scale = static_cast<double>(mass) / kWeightOne;
  return target_weight - exact_mul(static_cast<double>(draft_prob), scale);
}

int32_t count_agreements(std::span<const int32_t> chosen, std::span<const DraftToken> draft) {
  size_t count = 0;
  while (count < draft.size() && chosen[count] == draft[count].token) ++count;
  return static_cast<int32_t>(count);
}

std::vector<DraftCandidate> draft_distribution(const DraftToken& token) {
  if (token.candidates.empty()) return {{token.token, 1.0f}};
  return token.candidates;
}

float draft_prob_of(const DraftToken& token) {
  if (token.candidates.empty()) return 1.0f;
  for (const DraftCandidate& candidate : token.candidates) {
    if (candidate.token == token.token) return candidate.draft_prob;
  }
  return 0.0f;
}

VerifyRule resolve_rule(const SamplingParams& params) {
  if (is_greedy(params)) return VerifyRule::kGreedy;
  switch (params.verify_mode) {
    case VerifyMode::kStandard:
      return VerifyRule::kStandard;
    case VerifyMode::kCoupled:
      return VerifyRule::kCoupled;
    case VerifyMode::kAuto:
      break;
  }
  return params.seed.has_value() ? VerifyRule::kCoupled : VerifyRule::kStandard;
}

bool valid_draft(const DraftToken& token, int32_t vocab_size) {
  if (token.token < 0 || token.token >= vocab_size) return false;
  if (token.candidates.empty()) return true;
  if (token.candidates.size() > static_cast<size_t>(kMaxDraftCandidates)) return false;
  std::vector<int32_t> ids;
  double sum = 0.0;
  for (const DraftCandidate& candidate : token.candidates) {
    if (candidate.token < 0 || candidate.token >= vocab_size) return false;
    if (!(candidate.draft_prob >= 0.0f && candidate.draft_prob <= 1.0001f)) return false;
    sum += static_cast<double>(candidate.draft_prob);
    ids.push_back(candidate.token);
  }
  if (!(sum > 0.999 && sum < 1.001) || !(draft_prob_of(token) > 0.0f)) return false;
  std::sort(ids.begin(), ids.end());
  return std::adjacent_find(ids.begin(), ids.end()) == ids.end();
}

}  // namespace outrider
