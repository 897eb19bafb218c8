// What each kind of op costs in a forward pass: `outrider bench forward --profile`.
#pragma once

#include <cstdio>

#include "runtime/commands/bench/machine/forward_bench.h"

namespace outrider {

// Random bf16 weights of options.shape; steps of several row counts at several contexts of one
// sequence, and per kind of op the milliseconds of the fastest of options.steps steps. Prints a
// table, or one JSON object a line. Throws Error for bad options.
void run_forward_profile(const ForwardBenchOptions& options, std::FILE* out);

}  // namespace outrider
