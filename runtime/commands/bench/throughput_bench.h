// bench throughput: many requests offline, total tokens per second by how many are in flight, with
// and without speculation in turns. A front end on rank 0.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command throughput_bench();

}  // namespace outrider
