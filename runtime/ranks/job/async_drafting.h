// What speculative_config.async_drafting means for this job, once it is known who runs where.
// Rank 0 only.
#pragma once

#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/startup/ready_barrier.h"
#include "scheduler/sampling_params.h"

namespace outrider {

// Never kAuto. `auto` is `cache` where the draft has hardware of its own, and `off` where it shares
// a target's GPU, or its host's CPUs with targets whose threads and its own together are more than
// num_cpus: what works while they verify would work at their expense. Simulated models only sleep, so they share
// well. A draft that is translated does not know what a token of the target's would read like
// before it is followed by others: `off`.
AsyncDrafting resolve_async_drafting(const RunConfig& config,
                                     const RankLayout& layout,
                                     const Topology& topology,
                                     int num_cpus);

}  // namespace outrider
