// bench comm: the time of each message of a round between the ranks of this job, with nccl-tests'
// columns, and whether what arrived is right. On every target rank; rank 0 reports.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command comm_bench();

}  // namespace outrider
