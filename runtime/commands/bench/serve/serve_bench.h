// bench serve: an open-loop load generator for a running server, ours or any that speaks OpenAI's
// API. Not a job: one process that opens connections.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command serve_bench();

}  // namespace outrider
