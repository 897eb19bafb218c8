// From the runs of `bench serve` to the report that all benchmarks share. Names in the JSON are
// those of vLLM's result files where it has one. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_record.h"
#include "runtime/commands/bench/serve/serve_statistics.h"

namespace outrider {

// One load and one variant of the bodies.
struct ServeResult {
  ServeLoad load;
  std::string variant;  // "base", "compare"; empty when nothing is compared
  std::vector<std::vector<RequestRecord>> runs;  // compared results have one per block
  // Of the server's counters, for servers that tell nothing per request.
  SpeculationCount counters;
};

struct ServeFindings {
  std::string server;  // its address
  std::string model;
  ServeSetup setup;
  double burstiness = 1;
  std::vector<ServeResult> results;  // by load; of one load base, then compare
  bool stopped = false;              // by a signal, before all was sent
};

void fill_serve_report(const ServeFindings& findings, BenchReport* report);

}  // namespace outrider
