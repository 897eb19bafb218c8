// What this context's multipliers can do when nothing has to be fetched: the ceiling of a prefill.
// Used by the benchmarks, on the thread that runs the steps.
#pragma once

#include "runtime/ops/ops.h"

namespace outrider::ops {

// Multiplications and additions per second (both counted), in 1e9, of all threads in the best of
// some short bursts: of the bf16 dot products when the context rounds its activations, else of fp32
// fma.
double peak_gflops(Context& ctx);

}  // namespace outrider::ops
