// The first thing all ranks do together, before anything is loaded: each says what it is about to
// be (program, command, role, model), and a rank that differs from rank 0 ends the start with one
// sentence. Without it such a rank would compute other numbers, or wait for messages that never
// come.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// Something that ranks must have alike; a rank gives those that concern it.
struct Fact {
  std::string name;   // "model weights"
  std::string value;  // "1f0a33e2c4b5d697"
};

// problem: why this rank cannot start; empty when it can. Every rank of the world calls it. Throws
// Error on all of them, the same: a rank's problem, a fact that differs from rank 0's of that name,
// or a rank that says nothing within timeout_s.
void startup_handshake(World& world,
                       const RankLayout& layout,
                       const std::string& problem,
                       const std::vector<Fact>& facts,
                       double timeout_s = 600);

}  // namespace outrider
