// The verification rules as pure functions on numbers that are the same on every rank. Sources:
// Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192),
// Algorithm 1, whose p is our target_prob and q our draft_prob; Chen et al., "Accelerating large
// language model decoding with speculative sampling" (arXiv 2302.01318), Algorithm 2, where q is
// the target and p the draft; Sun et al., "Block verification accelerates speculative decoding"
// (arXiv 2403.10444), Algorithm 2; Daliri et al., "Coupling without communication and
// drafter-invariant speculative decoding" (arXiv 2408.07978).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"

namespace outrider {

// The rule a request is judged by, after kAuto and temperature are resolved.
enum class VerifyRule : uint8_t { kGreedy, kStandard, kBlock, kCoupled };
VerifyRule resolve_rule(const SamplingParams& params);
// Whether a bonus draft token changes anything: under the standard and block rules.
// Greedy and coupled requests take the target's own choice there, whatever is proposed.
bool judges_bonus_drafts(const SamplingParams& params);

// Whether a proposed token and its distribution make sense: ids in range and distinct,
// probabilities in [0, 1] that sum to 1 within 0.001, the token among them. verify() relies on it;
// the coordinator cuts a block before the first token that fails. What cannot be checked is whether
// the draft really drew from the distribution it sent.
bool valid_draft(const DraftToken& token, int32_t vocab_size);
inline constexpr int32_t kMaxDraftCandidates = 256;

// Leviathan Alg. 1, "n <- min({i - 1 | r_i > p_i(x) / q_i(x)})"; Chen Alg. 2, "r < min(1, q(x) /
// p(x))". target_prob = weight / mass, in fixed point.
bool standard_accepts(double uniform, float draft_prob, uint64_t weight, uint64_t mass);

// Leviathan section 2.3, p'(x) = norm(max(0, p(x) - q(x))); Chen eq. (2). With kept_prob < 1 the
// residual of the block rule, max(kept_prob * target_prob - draft_prob, 0), divided by kept_prob.
// Of a token that the draft may propose, before normalising and in units of the row's greatest
// target weight, exp(scaled - max).
double residual_weight(double target_weight, float draft_prob, uint64_t mass, double kept_prob);

// What every rank knows of the row that judges one draft token. Under the standard rule `draft`
// and `weights` hold the drawn token alone.
struct JudgedRow {
  uint64_t mass = 0;      // of the row's kept tokens, in fixed point
  DraftCandidates draft;  // draft_distribution() of the token
  ShortList<uint64_t, kUsualCandidates>
      weights;       // [draft.size()] the target's weights of these; 0: cut
  size_t drawn = 0;  // which of them the token is
};

// How many draft tokens are accepted, one after the other; uniforms[i] is draft token i's.
int32_t judge_standard(std::span<const JudgedRow> rows, std::span<const double> uniforms);

// Sun et al. (arXiv 2403.10444), Algorithm 2: P_i, the probability that draft tokens 1 .. i
// together are kept at least so far; P_0 = 1, P_i = min(P_{i-1} * target_prob / draft_prob, 1).
// before: P_{i-1}; row: draft token i's.
double block_kept_prob(double before, const JudgedRow& row);

// The same Algorithm: draft token i ends the kept block at least where u_i <= h_i, with
// h_i = Z / (Z + 1 - P_i), Z = sum over the vocabulary of max(P_i * target_prob - draft_prob, 0) in
// the row after it, and h_K = P_K; the longest such i counts.
struct BlockVerdict {
  int32_t num_accepted = 0;
  double kept_prob = 1.0;  // P of num_accepted, for the residual
};
BlockVerdict judge_block(std::span<const JudgedRow> rows, std::span<const double> uniforms);

// What the draft says it drew the token from. No candidates: all of it on the token.
DraftCandidates draft_distribution(const DraftToken& token);

}  // namespace outrider
