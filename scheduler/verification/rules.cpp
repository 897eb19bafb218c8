// See rules.h.
#include "scheduler/verification/rules.h"

#include <algorithm>

#include "runtime/base/numbers/exact_math.h"
#include "scheduler/sampling/logits_processor.h"

namespace outrider {

bool standard_accepts(double uniform, float draft_prob, uint64_t weight, uint64_t mass) {
  const double threshold =
      exact_mul(exact_mul(uniform, static_cast<double>(draft_prob)), static_cast<double>(mass));
  return threshold < static_cast<double>(weight);
}

double residual_weight(double target_weight, float draft_prob, uint64_t mass, double kept_prob) {
  const double scale = exact_div(static_cast<double>(mass) / kWeightOne, kept_prob);
  return target_weight - exact_mul(static_cast<double>(draft_prob), scale);
}

namespace {

// Z of the block rule. Only the few tokens the draft may propose can have draft_prob > 0, so the
// sum over the vocabulary needs their weights and the mass alone: no exchange of its own.
double block_residual_mass(const JudgedRow& row, double kept_prob) {
  if (row.mass == 0)
    return kept_prob;  // masks forbid all: the end of the request in place of a draw
  const auto mass = static_cast<double>(row.mass);
  uint64_t others = row.mass;
  double residual = 0.0;
  for (size_t c = 0; c < row.draft.size(); ++c) {
    others -= std::min(others, row.weights[c]);
    const double target_prob = static_cast<double>(row.weights[c]) / mass;
    const double left =
        exact_mul(kept_prob, target_prob) - static_cast<double>(row.draft[c].draft_prob);
    if (left > 0.0) residual += left;
  }
  return residual + exact_mul(kept_prob, static_cast<double>(others) / mass);
}

}  // namespace

int32_t judge_standard(std::span<const JudgedRow> rows, std::span<const double> uniforms) {
  size_t accepted = 0;
  for (; accepted < rows.size(); ++accepted) {
    const JudgedRow& row = rows[accepted];
    const float draft_prob = row.draft[row.drawn].draft_prob;
    const uint64_t weight = row.weights[row.drawn];
    if (!standard_accepts(uniforms[accepted], draft_prob, weight, row.mass)) break;
  }
  return static_cast<int32_t>(accepted);
}

double block_kept_prob(double before, const JudgedRow& row) {
  const auto draft_prob = static_cast<double>(row.draft[row.drawn].draft_prob);
  const double target_mass = exact_mul(before, static_cast<double>(row.weights[row.drawn]));
  const double draft_mass = exact_mul(draft_prob, static_cast<double>(row.mass));
  if (target_mass < draft_mass) return exact_div(target_mass, draft_mass);
  return target_mass > 0.0 ? 1.0 : 0.0;
}

BlockVerdict judge_block(std::span<const JudgedRow> rows, std::span<const double> uniforms) {
  BlockVerdict verdict;
  double kept = 1.0;
  for (size_t i = 1; i <= rows.size(); ++i) {
    kept = block_kept_prob(kept, rows[i - 1]);
    bool stands = uniforms[i - 1] <= kept;
    if (i < rows.size()) {
      const double residual = block_residual_mass(rows[i], kept);
      stands = exact_mul(uniforms[i - 1], residual + (1.0 - kept)) <= residual;
    }
    if (!stands || !(kept > 0.0)) continue;
    verdict.num_accepted = static_cast<int32_t>(i);
    verdict.kept_prob = kept;
  }
  return verdict;
}

DraftCandidates draft_distribution(const DraftToken& token) {
  if (token.candidates.empty()) return {{token.token, 1.0f}};
  return token.candidates;
}

VerifyRule resolve_rule(const SamplingParams& params) {
  if (is_greedy(params)) return VerifyRule::kGreedy;
  switch (params.verify_mode) {
    case VerifyMode::kStandard:
      return VerifyRule::kStandard;
    case VerifyMode::kCoupled:
      return VerifyRule::kCoupled;
    case VerifyMode::kBlock:
      return VerifyRule::kBlock;
    case VerifyMode::kAuto:
      break;
  }
  return params.seed.has_value() ? VerifyRule::kCoupled : VerifyRule::kBlock;
}

bool judges_bonus_drafts(const SamplingParams& params) {
  const VerifyRule rule = resolve_rule(params);
  return rule == VerifyRule::kStandard || rule == VerifyRule::kBlock;
}

namespace {

using Ids = ShortList<int32_t, kUsualCandidates>;

// Every pair of a usual list, which is quicker than to sort it.
bool is_one_twice(Ids& ids) {
  if (ids.size() > kUsualCandidates) {
    std::sort(ids.begin(), ids.end());
    return std::adjacent_find(ids.begin(), ids.end()) != ids.end();
  }
  bool twice = false;
  const int32_t* const id = ids.data();
  for (size_t i = 1; i < ids.size(); ++i) {
    for (size_t j = 0; j < i; ++j) twice |= id[i] == id[j];
  }
  return twice;
}

}  // namespace

bool valid_draft(const DraftToken& token, int32_t vocab_size) {
  if (token.token < 0 || token.token >= vocab_size) return false;
  if (token.candidates.empty()) return true;
  if (token.candidates.size() > static_cast<size_t>(kMaxDraftCandidates)) return false;
  Ids ids;
  double sum = 0.0;
  float own_prob = 0.0f;
  for (const DraftCandidate& candidate : token.candidates) {
    if (candidate.token < 0 || candidate.token >= vocab_size) return false;
    if (!(candidate.draft_prob >= 0.0f && candidate.draft_prob <= 1.0001f)) return false;
    sum += static_cast<double>(candidate.draft_prob);
    if (candidate.token == token.token) own_prob = candidate.draft_prob;
    ids.push_back(candidate.token);
  }
  return sum > 0.999 && sum < 1.001 && own_prob > 0.0f && !is_one_twice(ids);
}

}  // namespace outrider
