// How fast one rank decodes, and how near that is to what its memory can deliver: `outrider bench
// forward`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "runtime/ops/ops.h"

namespace outrider {

struct ForwardBenchOptions {
  std::string shape = "tinyllama-1.1b";  // a name of models/synthetic/synthetic.h
  std::string isa = "auto";
  ops::Activations activations = ops::Activations::kF32;
  int num_threads = 2;
  int steps = 20;  // timed steps of every kind; medians are printed
  bool json = false;
  bool profile = false;  // see forward_profile.h
};

// Random bf16 weights of the shape; decodes batch 1, alternating every step with a plain read loop
// over as many bytes on the same threads, so that a busy machine slows both; then the step time by
// rows of one sequence, and what numerics strict costs. Prints a table, or one JSON object. Throws
// Error for bad options.
void run_forward_bench(const ForwardBenchOptions& options, std::FILE* out);

}  // namespace outrider
