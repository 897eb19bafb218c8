// Measures the matrix products against the memory: how near a step over the weights of
// a 1.1B-parameter model comes to a plain read of as many bytes, and what further rows cost. Called
// by `outrider bench` and the bench_ops program.
#pragma once

#include <cstdio>

namespace outrider::ops {

// Prints a table, or one JSON object, to out. Needs about 3.2 GiB. Throws Error when memory or
// threads are refused.
void run_ops_bench(int num_threads, bool json, std::FILE* out);

}  // namespace outrider::ops
