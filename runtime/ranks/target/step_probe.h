// What the target's steps take by their rows, measured before the first request, so that the
// planner (scheduler/pacing/speculation.h) knows from the first round on what a draft token costs.
// Every rank makes the same batch; the coordinator decides how many and keeps the times.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/forward/model.h"
#include "scheduler/pacing/step_times.h"

namespace outrider {

struct StepProbe {
  StepLoad load;
  double seconds = 0;
};

// The most rows that a model can be probed with.
int32_t most_probe_rows(const ModelOptions& options);

// num_rows rows as verifications of a few rows each, all with logits, of num_tokens different
// tokens. They write into the first KV blocks, which must be nobody's. `blocks` is filled with what
// the batch refers to.
Batch probe_batch(int32_t num_rows,
                  int32_t block_size,
                  int32_t num_tokens,
                  std::vector<int32_t>* blocks);
StepLoad probe_load(int32_t num_rows);

// Runs steps of 1 to most_rows rows, the far apart ones first, each a few times and the shortest
// counts (what disturbs a step makes it longer), until about a second is over.
// run_step: one step of so many rows; gives its seconds.
std::vector<StepProbe> probe_steps(int32_t most_rows,
                                   const std::function<double(int32_t num_rows)>& run_step);

}  // namespace outrider
