// Shared by the two files that know MPI. Not for others.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/target_group.h"

namespace outrider::mpi {

enum Tag : int { kMessageTag = 1, kAbortTag = 2, kGroupTag = 3 };

void check(int code, const char* call);  // throws Error with MPI's text

// Waits by testing; calls check_alive about every millisecond, which throws when the job is ending.
// Completed requests become MPI_REQUEST_NULL.
void wait_all(std::vector<MPI_Request>& requests, const std::function<void()>& check_alive);

std::unique_ptr<TargetGroup> make_group(int rank, int num_ranks, std::function<void()> check_alive);

}  // namespace outrider::mpi
