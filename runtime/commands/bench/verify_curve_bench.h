// bench verify-curve: what a step costs by its rows, from one row (plain decoding) to a
// verification of a long draft, and how near the one row comes to a plain read of the weights. On
// every target rank; rank 0 reports.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command verify_curve_bench();

}  // namespace outrider
