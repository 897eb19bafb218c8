// Benchmarks without a job: forward runs one model shape, ops the kernels one by one.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command forward_bench();
Command ops_bench();

}  // namespace outrider
