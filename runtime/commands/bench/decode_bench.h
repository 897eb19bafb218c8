// bench decode: what speculation gains on given prompts, beside what the formula of Leviathan et
// al. (Theorem 3.8) predicts from the measured acceptance and cost ratio. A front end on rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/ranks/job.h"

namespace outrider {

struct DecodeBenchOptions {
  std::string prompts_file;  // empty = a few of our own
  int32_t num_prompts = 8;
  int32_t max_tokens = 128;
  int32_t concurrency = 1;
  int32_t num_repeats = 3;
  double temperature = 0;
  std::string seed;
  std::string json_file;
};

int run_decode_bench(const FrontEndContext& context, const DecodeBenchOptions& options);

}  // namespace outrider
