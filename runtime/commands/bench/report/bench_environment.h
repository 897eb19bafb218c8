// What a figure must carry, beside build_info(), so that it can be believed and repeated: machine
// and topology.
// Rank 0 of every benchmark; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/ranks/startup/ready_barrier.h"

namespace outrider {

struct BenchEnvironment {
  std::string date;  // UTC, ISO 8601
  std::string host;
  std::string cpu;                        // model name
  std::vector<std::string> cpu_features;  // of those that our kernels or a peer's may use
  std::string isa;                        // the kernels chosen
  int num_cores = 0;                      // logical, that this process may use
  int64_t memory_bytes = 0;
  int num_numa_nodes = 1;
  Topology topology;
  std::array<double, 3> load_at_start = {};  // averages over 1, 5 and 15 minutes
  std::array<double, 3> load_at_end = {};
};

// isa: of the run's configuration ("auto" is resolved). Looks at this host only.
BenchEnvironment look_around(const std::string& isa, const Topology& topology);

std::array<double, 3> load_average();

}  // namespace outrider
