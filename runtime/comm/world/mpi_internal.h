// Shared by the two files that know MPI. Not for others.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "runtime/comm/group/shared_group.h"
#include "runtime/comm/group/target_group.h"

namespace outrider::mpi {

enum Tag : int { kMessageTag = 1, kAbortTag = 2, kGroupTag = 3 };

void check(int code, const char* call);  // throws Error with MPI's text

// Waits by testing; calls check_alive about every millisecond. Completed requests become
// MPI_REQUEST_NULL.
void wait_all(std::vector<MPI_Request>& requests, const GroupWaits& waits);

std::unique_ptr<TargetGroup> make_group(int rank, int num_ranks, const GroupWaits& waits);

}  // namespace outrider::mpi
