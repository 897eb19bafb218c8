// `bench round`: what a round costs besides its models, by how many sequences take part. Without a
// job; listed in bench.cpp.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command round_bench();

}  // namespace outrider
