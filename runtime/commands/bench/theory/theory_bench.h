// bench theory: the founding papers' figures, measured. Simulated acceptances through the program's
// own rules, and the job's pair, beside the formulas. A front end on rank 0.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command theory_bench();

}  // namespace outrider
