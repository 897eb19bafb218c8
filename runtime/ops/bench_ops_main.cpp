// bench_ops [threads] [--json]: the measurements of bench_ops.h alone, for work on the kernels. Not
// installed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "runtime/ops/bench_ops.h"

int main(int argc, char** argv) {
  int num_threads = 2;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      num_threads = std::atoi(argv[i]);
    }
  }
  try {
    outrider::ops::run_ops_bench(num_threads, json, stdout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_ops: %s\n", error.what());
    return 1;
  }
  return 0;
}
