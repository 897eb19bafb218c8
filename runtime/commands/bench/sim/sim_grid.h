// What `bench sim` runs: which acceptances, costs and numbers of requests. One job holds them all,
// because every pair of acceptance and cost is a workload_class of the simulated models
// (models/simulated/law.h) and a request's prompt picks it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/simulated/spec.h"
#include "runtime/base/settings/options.h"
#include "runtime/base/settings/run_config.h"

namespace outrider {

struct SimOptions {
  double step_ms = 10;
  std::vector<double> alphas = {0.6, 0.7, 0.8, 0.9};
  std::vector<double> costs = {0.05, 0.1, 0.2};
  std::vector<std::string> modes = {"off", "chain", "cache"};
  std::vector<int32_t> draft_lens;  // empty: the best
  std::vector<int32_t> requests = {1, 4, 16, 64, 256};
  double many_row_ms = 0.05;
  bool cases = true;
  std::string target_keys;
  std::string draft_keys;
  int32_t max_tokens = 1200;
  int32_t case_tokens = 200;
  int32_t sweep_tokens = 256;
  double random_range_ratio = 0.5;
  int32_t num_repeats = 2;
  int32_t seed = 0;
  double temperature = 1;
  std::vector<std::string> pacing;
  std::string clock = "real";
  double message_us = 0;
};

std::vector<Option> sim_options(SimOptions* options);

// A pair of models: a workload_class.
struct SimPair {
  double alpha = 0;
  double cost = 0;    // of a draft step, in target steps
  double row_ms = 0;  // of the target; the draft's is cost times that
};

// A pair whose synchronous drafts have one length.
struct SimCell {
  SimPair pair;
  int32_t workload_class = 0;
  int32_t draft_len = 0;
};

// A situation in which speculation cannot pay, or hardly.
struct SimCase {
  std::string name;
  SimPair pair;
  int32_t workload_class = 0;
  int32_t num_requests = 1;
};

struct SimGrid {
  std::vector<SimCell> cells;
  std::vector<SimCase> cases;
  SimPair many;  // whose requests come many at once
  int32_t many_workload_class = 0;
  std::vector<int32_t> requests;
  bool off = false;  // which ways of asynchronous drafting are measured
  bool chain = false;
  bool cache = false;
  int32_t num_workload_classes = 0;
  SimulatedSpec target;
  SimulatedSpec draft;
};

// Reads the options, throwing Error for what cannot be understood, and sets the job's models and
// limits.
SimGrid make_sim_grid(const SimOptions& options, RunConfig& config);

// Milliseconds of one step with num_rows rows of the workload_class, all at one position.
double sim_step_ms(const SimulatedSpec& spec,
                   int32_t workload_class,
                   int32_t num_rows,
                   int32_t position);

}  // namespace outrider
