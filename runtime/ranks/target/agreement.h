// The check that all target ranks decided a round alike (docs/round.md, I3). Every rank sends the
// digest of its decision to the coordinator as soon as it has one; the coordinator compares them
// before anything of the round reaches a client, the draft or the planner.
#pragma once

#include <span>
#include <string>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// Ranks 1 .. R-1, after each round. Returns at once.
void report_digest(World& world, uint64_t round, uint64_t digest);

// The coordinator, after each round: waits for the other target ranks' digests, which are as far
// away as the slowest of them. Throws Error when they differ: the job must end in this round.
void check_agreement(World& world, const RankLayout& layout, uint64_t round, uint64_t digest);

// digests[r]: what target rank r decided. Empty when all are the same, otherwise one sentence that
// names the round and the ranks in the minority; without a majority, every rank and its digest.
std::string disagreement(const RankLayout& layout,
                         uint64_t round,
                         std::span<const uint64_t> digests);

}  // namespace outrider
