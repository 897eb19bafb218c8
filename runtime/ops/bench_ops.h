// Measures the matrix products against the memory and the multipliers: how near a step over the
// weights of a 1.1B-parameter model comes to a plain read of as many bytes, what further rows cost,
// and with many rows, how near it comes to multiplying in registers. Called by `outrider bench` and
// the bench_ops program.
#pragma once

#include <cstdio>

namespace outrider::ops {

// For weights in bf16 (with float32 and with bfloat16 activations), and in 8 and 4 bits with groups
// of 128. Prints tables, or a JSON array of an object each, to out. Needs about 3.2 GiB. Throws
// Error when memory or threads are refused.
void run_ops_bench(int num_threads, bool json, std::FILE* out);

}  // namespace outrider::ops
