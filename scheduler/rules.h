// The verification rules as pure functions on numbers that are the same on every rank. Sources:
// Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192),
// Algorithm 1, whose p is our target_prob and q our draft_prob; Chen et al., "Accelerating large
// language model decoding with speculative sampling" (arXiv 2302.01318), Algorithm 2, where q is
// the target and p the draft; Daliri et al., "Coupling without communication and drafter-invariant
// speculative decoding" (arXiv 2408.07978).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"

namespace outrider {

// Leviathan Alg. 1, "n <- min({i - 1 | r_i > p_i(x) / q_i(x)})"; Chen Alg. 2, "r < min(1, q(x) /
// p(x))". target_prob = weight / mass, in fixed point.
bool standard_accepts(double uniform, float draft_prob, uint64_t weight, uint64_t mass);

// Leviathan section 2.3, p'(x) = norm(max(0, p(x) - q(x))); Chen eq. (2). The residual of a token
// that the draft may propose, before normalising and in units of the row's greatest target weight,
// exp(scaled - max).
double residual_weight(double target_weight, float draft_prob, uint64_t mass);

// Coupled and greedy: the target's own choices are emitted while they equal the draft's.
int32_t count_agreements(std::span<const int32_t> chosen, std::span<const DraftToken> draft);

// What the draft says it drew the token from. No candidates: all of it on the token.
std::vector<DraftCandidate> draft_distribution(const DraftToken& token);
float draft_prob_of(const DraftToken& token);

}  // namespace outrider
