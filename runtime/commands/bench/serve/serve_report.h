// From the runs of `bench serve` to the report that all benchmarks share. Names in the JSON are
// those of vLLM's result files where it has one. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/bench/serve/serve_options.h"

namespace outrider {

// One variant of the bodies.
struct ServeResult {
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
  std::vector<ServeResult> results;  // one, or base and compare
  bool stopped = false;              // by a signal, before all was sent
};

// The JSON's own part: "results", one for each variant, with "requests"; a single result's figures
// also stand at the top.
void fill_serve_report(const ServeFindings& findings, BenchReport* report);

}  // namespace outrider
