// bench prefill: prompt tokens per second by prompt length, in the chunks a server would make and
// in one step. On every target rank; rank 0 reports.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command prefill_bench();

}  // namespace outrider
