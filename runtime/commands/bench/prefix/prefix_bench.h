// `outrider bench prefix`: how much of a trace's repeated beginnings the scheduler's KV blocks are
// used again for. One process, no model.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command prefix_bench();

}  // namespace outrider
