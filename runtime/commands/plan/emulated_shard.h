// One target rank's share of a step, measured without the others: `outrider plan --tp-emulate R`.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/settings/run_config.h"

namespace outrider {

struct EmulatedStep {
  int32_t rows = 0;
  double median_ms = 0;
};

// Loads rank 0's shard of num_ranks of the config's target, gives it a group whose sums leave
// values as they are (what comes out is no text), and times steps of one sequence on the config's
// device; on a GPU they are recorded as those of a real job.
std::vector<EmulatedStep> time_shard(const RunConfig& config,
                                     int num_ranks,
                                     const std::vector<int32_t>& rows);

}  // namespace outrider
