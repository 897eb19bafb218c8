// What target ranks tell each other of a round: plans and what belongs to them downwards, digests
// upwards, along a tree whose root is rank 0. So no rank posts or awaits more than kTreeFanOut
// messages, and up to kTreeFanOut + 1 ranks each hears from rank 0 itself.
//
// The digests check that all target ranks decided a round alike (docs/round.md, I3). Every rank
// reports its own and those below it as soon as it has them; the coordinator compares them before
// anything of the round reaches a client, the draft or the planner.
#pragma once

#include <algorithm>
#include <ranges>
#include <span>
#include <string>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// Each step down is one more wake-up: the ranks of a host of eight GPUs shall hear rank 0 itself.
inline constexpr int kTreeFanOut = 8;

// Of ranks 1 .. R-1.
inline int tree_parent(int rank) { return (rank - 1) / kTreeFanOut; }
// Of ranks 0 .. R-1, ascending.
inline auto tree_children(int rank, int num_targets) {
  const int first = std::min(kTreeFanOut * rank + 1, num_targets);
  return std::views::iota(first, std::min(first + kTreeFanOut, num_targets));
}

// A report is a list of these.
struct DigestReport {
  int64_t rank = 0;
  uint64_t round = 0;
  uint64_t digest = 0;
};

// Hands what the coordinator tells every target on to the ranks right below this one.
void post_down(World& world, const RankLayout& layout, const Bytes& message);

// Ranks 1 .. R-1, after each round: waits for the ranks below, which are as far away as the slowest
// of them.
void report_digest(World& world, const RankLayout& layout, uint64_t round, uint64_t digest);

// The coordinator, after each round: waits for all other target ranks. Throws Error when digests
// differ: the job must end in this round.
void check_agreement(World& world, const RankLayout& layout, uint64_t round, uint64_t digest);

// digests[r]: what target rank r decided. Empty when all are the same, otherwise one sentence that
// names the round and the ranks in the minority; without a majority, every rank and its digest.
std::string disagreement(const RankLayout& layout,
                         uint64_t round,
                         std::span<const uint64_t> digests);

}  // namespace outrider
