// bench decode: what speculation gains on given prompts, beside what the formula of Leviathan et
// al. (Theorem 3.8) predicts from the measured acceptance and cost ratio. A front end on rank 0.
#pragma once

#include "runtime/commands/bench/report/bench_kind.h"

namespace outrider {

Command decode_bench();

}  // namespace outrider
