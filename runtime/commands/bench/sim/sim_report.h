// The tables, figures and plots of `bench sim`, with a verdict for each row. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/bench/sim/sim_grid.h"
#include "runtime/commands/bench/sim/sim_waves.h"

namespace outrider {

// What waves with drafts, or without, gave.
struct SimSide {
  std::vector<double> rates;              // tokens/s of each wave
  std::vector<double> full_rates;         // of the time in which all requests of it ran
  std::vector<double> tokens;             // of each wave
  std::vector<double> full_rounds;        // of each wave: in which all requests ran
  std::vector<double> overhead_us;        // of each round of a single request
  std::vector<double> round_overhead_us;  // mean of each wave's rounds
  std::vector<double> rounds_us;          // of every round in which all requests ran
  double variance = 0;  // sum over the waves of the variance of their tokens/s by its square

  void take_in(const SimWave& wave);
};

// One way of drafting in one situation: waves taken in turns with waves without drafts.
struct SimFindings {
  SimSide off;
  SimSide on;
  double seconds = 0;  // with drafts
  double bubble_s = 0;
  double num_lookups = 0;
  double num_hits = 0;
  int64_t num_rounds = 0;
  int64_t num_round_tokens = 0;
  int64_t examined = 0;
  int64_t accepted = 0;
  double bubble_variance = 0;  // sum over the waves, of the share of time that the targets waited

  void take_in(const SimWave& without, const SimWave& with);
  double hit_rate() const { return num_lookups > 0 ? num_hits / num_lookups : 0; }
  double bubble_share() const { return seconds > 0 ? bubble_s / seconds : 0; }
  // Standard errors of the mean over the waves, by their rounds: of the speed-up, relative; of
  // bubble_share().
  double speedup_error() const;
  double bubble_error() const;
};

struct SimResults {
  std::vector<SimFindings> synchronous;  // of each cell; empty when that mode was not measured
  std::vector<SimFindings> chain;
  std::vector<SimFindings> cache;
  std::vector<SimFindings> cases;
  std::vector<SimFindings> sweep;  // of each number of requests
};

// Returns how many verdicts fall short: those that do by more than two standard errors of their
// own.
int32_t report_sim(const SimGrid& grid, const SimResults& results, BenchReport* report);

}  // namespace outrider
