// The target group of processes of one host: memory that all of them map (arena_group.h). For
// world/mpi.cpp; knows nothing of MPI itself.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "runtime/comm/group/target_group.h"

namespace outrider {

// How a member waits for the others.
struct GroupWaits {
  std::chrono::microseconds hot_time{0};  // polled before a wait begins to sleep
  std::function<void()> check_alive;      // throws when the job is ending
};

// The members of over_messages, all on this host, over memory they share. The first exchange makes
// it; where it cannot be had (another user or container, no /proc) over_messages goes on serving,
// alike on all members.
std::unique_ptr<TargetGroup> make_shared_group(std::unique_ptr<TargetGroup> over_messages,
                                               const GroupWaits& waits);

// False when Open MPI was told by --mca btl to do without shared memory.
bool may_share_memory();

}  // namespace outrider
