// Benchmarks without a job: forward runs one model shape, ops the kernels one by one.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

BenchKind forward_bench();
BenchKind ops_bench();

}  // namespace outrider
