// Measures the matrix products against the memory: how near a step over the weights of
// a 1.1B-parameter model comes to a plain read of as many bytes, and what further rows cost. Called
// by `outrider bench` and the bench_ops program.
#pragma once

#include <cstdio>

namespace outrider::ops {

// For weights in bf16, and in 8 and 4 bits with groups of 128. Prints tables, or one JSON object
// (bf16's, with those of int8 and int4 within), to out. Needs about 3.2 GiB. Throws Error when
// memory or threads are refused.
void run_ops_bench(int num_threads, bool json, std::FILE* out);

}  // namespace outrider::ops
