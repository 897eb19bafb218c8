// bench comm --device cuda: sums between the ranks' GPUs by every group that can be set up, and
// what of a round goes through the host. On every target rank; rank 0 reports.
#pragma once

#include <string>
#include <vector>

#include "runtime/commands/bench/comm/comm_cases.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/ranks/job/job.h"

namespace outrider {

// staged, exchange, nccl, hierarchical.
const std::vector<std::string>& device_group_names();
// Throws Error naming what is none of them.
void check_device_groups(const std::vector<std::string>& names);

struct DeviceCommOptions {
  std::vector<std::string> groups;  // of device_group_names()
  int32_t num_iterations = 0;
  int32_t num_repeats = 0;
};

// sizes as comm_cases() takes them. Returns the exit code: 1 when something arrived wrong.
int measure_device_comm(const BenchRun& run,
                        const TargetContext& context,
                        const CommSizes& sizes,
                        const DeviceCommOptions& options);

}  // namespace outrider
