// The life of ranks 1 .. R-1: receive a plan, execute it, report the decision's digest.
#pragma once

#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/target/target.h"

namespace outrider {

// Returns after the plan that says shutdown.
void run_target_loop(World& world, const RankLayout& layout, TargetRank& target);

}  // namespace outrider
