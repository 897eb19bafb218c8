// Target ranks in this process under rounds that a test makes by hand.
#pragma once

#include <functional>
#include <string>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/target/target.h"

namespace outrider::test {

// Rank 0 plays the coordinator by hand, the others are real target ranks of the embedded model.
// Returns the sentence of the error that ended the job, empty when there was none.
std::string run_targets(int num_targets, const std::function<void(World&, TargetRank&)>& rank0);

// After it the target ranks leave.
RoundPlan shutdown_plan(uint64_t round);

}  // namespace outrider::test
