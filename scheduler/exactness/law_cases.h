// The cases in which losslessness is counted: every kind of sampling under one rule, and the rules
// that are broken on purpose. The same list for the law tests and for `outrider verify`.
#pragma once

#include <vector>

#include "scheduler/exactness/law_sampler.h"

namespace outrider {

// Every sampler, draft kind and block form under one rule; names are unique.
std::vector<LawCase> sampler_cases(VerifyMode mode);

// The same with a bonus draft token, mostly by a coin, and blocks of any size down to
// none; for the rules that judge bonus draft tokens. Names are unique among these and the above.
std::vector<LawCase> bonus_draft_cases(VerifyMode mode);

// Each must fail its test by far. Every one has a twin without the fault among or beside the
// sampler cases, so that what fails is the fault and not the model it is shown on.
std::vector<LawCase> negative_controls();

// P(agree) of the coupled rule (Daliri et al., arXiv 2408.07978): sum over i of
// 1 / sum over j of max(target_j / target_i, draft_j / draft_i). Both sum to 1. O(n log n).
double coupled_agreement(const std::vector<double>& target_probs,
                         const std::vector<double>& draft_probs);

}  // namespace outrider
