// The start-up roll call: every rank says that it is ready or why not, rank 0 says which ranks it
// is still waiting for, and all go on together or all stop with one sentence.
#pragma once

#include <string>

#include "runtime/comm/world.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// problem: empty when this rank is ready. Throws Error on every rank when any has a problem or does
// not report within timeout_s; the sentence names rank, host and role. Rank 0 logs the table.
void roll_call(World& world,
               const RankLayout& layout,
               const std::string& problem,
               double timeout_s = 600);

}  // namespace outrider
