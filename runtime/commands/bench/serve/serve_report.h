// From the run of `bench serve` to the report that all benchmarks share. Names in the JSON are
// those of vLLM's result files where it has one. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_server.h"

namespace outrider {

struct ServeFindings {
  std::string server;  // its address
  std::string model;
  std::vector<RequestRecord> records;
  SpeculationCounters speculation;  // what they grew by
  bool stopped = false;             // by a signal, before all was sent
};

// The JSON's own part: the figures, and "requests" with the times of each.
void fill_serve_report(const ServeBenchOptions& options,
                       const ServeSetup& setup,
                       const ServeFindings& findings,
                       BenchReport* report);

}  // namespace outrider
