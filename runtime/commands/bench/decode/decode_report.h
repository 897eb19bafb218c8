// What bench decode found, as tables, figures, JSON and a plot. Pure functions of the measurements.
#pragma once

#include <vector>

#include "runtime/commands/bench/decode/decode_measure.h"
#include "runtime/commands/bench/report/bench_report.h"

namespace outrider {

// One measurement per pair of models; the first is the one whose figures stand at the top of the
// JSON. report has its environment already.
void report_decode(const std::vector<DecodeMeasurement>& pairs,
                   const DecodeOptions& options,
                   BenchReport* report);

}  // namespace outrider
