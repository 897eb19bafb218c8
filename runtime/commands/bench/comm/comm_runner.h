// Times the cases of comm_cases.h and device_comm_cases.h in turns, on every rank, and makes rows
// of nccl-tests' columns of what rank 0 found.
#pragma once

#include <vector>

#include "runtime/commands/bench/comm/comm_cases.h"
#include "runtime/commands/bench/report/bench_report.h"

namespace outrider {

struct CommSamples {
  std::vector<double> us;  // of one exchange, a sample a turn
  uint64_t num_wrong = 0;  // over all ranks and turns
};

// By case. num_iterations exchanges in a row make a sample. All members of the group call it.
std::vector<CommSamples> run_comm_cases(TargetGroup& group,
                                        const std::vector<CommCase>& cases,
                                        int32_t num_iterations,
                                        int32_t num_repeats);

uint64_t count_wrong(const std::vector<CommSamples>& samples);

// A table's head, and a case's row in it; the row's figures also go into the report. Gives the
// interval of the time and the bus bandwidth.
BenchTable comm_table();
struct CommRow {
  Interval time;  // us
  double bus_gb_s = 0;
};
CommRow add_comm_row(const CommCase& one,
                     const CommSamples& samples,
                     BenchReport* report,
                     BenchTable* table);

}  // namespace outrider
