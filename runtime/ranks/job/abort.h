// How a job's processes end when something is wrong. Called on any rank.
#pragma once

#include <string>

#include "runtime/comm/world/world.h"

namespace outrider {

inline constexpr int kExitUsage = 2;     // a start-up problem, agreed on by all ranks
inline constexpr int kExitAborted = 70;  // in the middle of rounds

// An error in the middle of rounds: the other ranks may be inside a collective, so there is no
// orderly way out.
[[noreturn]] void abort_job(World& world, const std::string& reason);

}  // namespace outrider
