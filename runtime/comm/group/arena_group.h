// The target group of members that see the same memory: threads of one process, or processes of one
// host that map it. A sum of a few KB takes about a microsecond, and large ones pass through the
// caches piece by piece. Made by the worlds only; folds as the form over MPI does, bit for bit.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "runtime/comm/group/target_group.h"

namespace outrider {

// What the members share. Must be zero before the first member is made and lie at a multiple of 64.
size_t arena_bytes(int num_members);

struct ArenaMember {
  int rank = 0;
  int size = 0;
  std::byte* memory = nullptr;
  // How long a wait polls before it begins to sleep.
  std::chrono::microseconds hot_time{0};
  // Called in every wait and once a verb: throws when the job is ending, and lets messages of other
  // kinds move on.
  std::function<void()> check_alive;
};

// memory must outlive the group. One group after the other may use the same memory, if they have
// the same members.
std::unique_ptr<TargetGroup> make_arena_group(ArenaMember member);

// How long waits between ranks of this host should poll: long when each can have a core to itself;
// hardly at all when the one waited for may need the very core of the one that polls.
std::chrono::microseconds hot_time_for(int num_ranks_here, int num_cores);

}  // namespace outrider
