// bench load: how long a model takes until it can be run, against reading its files.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command load_bench();

}  // namespace outrider
