// What a simulated model is told to be: its costs and, for a draft, how often it is right. Text
// such as "sim:step_ms=40,row_ms=0.5" or "sim:llama-70b-tp8,jitter=0.05"; every rank parses the
// same. Keys, all optional but that the cost of a step must come from somewhere:
//   step_ms     a step's fixed cost; a list a/b/c gives one per workload_class
//   curve       a file of `bench verify-curve --json`: milliseconds by rows, instead of step_ms
//   row_ms      per row; a list a/b/c gives one per workload_class
//   context_us  per row and 1,000 positions before it (the attention's arithmetic)
//   kv_us       per sequence and 1,000 positions before its last row (reading its KV)
//   link_us     per sum over the ranks: 2 * layers + 1 of them a step
//   layers      for link_us
//   jitter      a step takes its cost times 1 +- jitter, uniform, the same on all ranks
//   alpha       draft: acceptance; 0, 0.1 .. 0.99 or 1; a list gives one per workload_class
//   seed, vocab, max_len, workload_classes, repeat   see models/simulated/law.h; a pair must agree
//   on
//               them
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/forward/model.h"

namespace outrider {

struct SimulatedSpec {
  std::vector<double> step_ms;  // one, or one per workload_class; empty with a curve
  std::vector<std::pair<int32_t, double>> curve;  // rows, milliseconds; rows ascending
  std::vector<double> row_ms = {0};               // one, or one per workload_class
  double context_us = 0;
  double kv_us = 0;
  double link_us = 0;
  int32_t layers = 1;
  double jitter = 0;
  std::vector<double> alpha;  // one, or one per workload_class; empty = not given
  uint64_t seed = 1;
  int32_t vocab = 3072;  // the embedded tokenizer's
  int32_t max_len = 8192;
  int32_t workload_classes = 1;
  double repeat = 0;
};

inline constexpr double kDefaultSimulatedAlpha = 0.8;

bool is_simulated(std::string_view name);  // "sim:..."

// Throws Error naming the key and what a good value is.
SimulatedSpec parse_simulated(std::string_view name);

// A config with these sizes; what it says of layers and heads is only there to be cut over ranks.
ModelConfig simulated_config(const SimulatedSpec& spec);

// Of a step, before jitter, in milliseconds. The slowest workload_class in the batch counts.
double simulated_step_ms(const SimulatedSpec& spec, const Batch& batch);
// The same times 1 +- jitter, for step number `step` of a rank.
double jittered_ms(const SimulatedSpec& spec, double cost_ms, uint64_t step);

}  // namespace outrider
