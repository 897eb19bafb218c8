// `bench sim`: what the runtime makes of dialled acceptance and costs. Simulated models, everything
// else real.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command sim_bench();

}  // namespace outrider
