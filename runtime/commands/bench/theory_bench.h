// bench theory: the founding papers' figures, measured. Simulated acceptances through the program's
// own rules, and the job's pair, beside the formulas. A front end on rank 0.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/ranks/job.h"

namespace outrider {

struct TheoryBenchOptions {
  int32_t num_rounds = 10000;  // of every simulated figure
  std::string prompts_file;    // empty = a few of our own
  int32_t num_prompts = 8;
  int32_t max_tokens = 128;
  double temperature = 1;
  int32_t seed = 1;
  std::string json_file;
  std::string svg_file;
};

int run_theory_bench(const FrontEndContext& context, const TheoryBenchOptions& options);

}  // namespace outrider
