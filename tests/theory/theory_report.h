// What `theory_bench` found, as tables for the terminal, JSON and a plot. Pure functions of the
// figures.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/commands/bench/report/plot.h"
#include "tests/theory/theory_pair.h"
#include "tests/theory/theory_simulation.h"

namespace outrider {

struct SimulatedCell {
  double alpha = 0;
  SimulationSpec spec;
  SimulatedRounds rounds;
  double expected = 0;
};

struct TheoryReport {
  std::string title;  // of the pair: model, draft, temperature
  std::vector<SimulatedCell> simulated;
  PairMeasurement pair;
};

void print_report(const TheoryReport& report, std::FILE* out);
std::string report_json(const TheoryReport& report);
// Three panels: simulated acceptance, the pair's tokens per round, and its speed-up.
Plot report_plot(const TheoryReport& report);

}  // namespace outrider
