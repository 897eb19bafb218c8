// The life of the draft rank: takes the coordinator's requests, steps while there is work, sends
// what is new. Runs on the draft's thread, or in the draft engine's process (draft/engine.h).
#pragma once

#include "runtime/comm/world/world.h"
#include "runtime/ranks/draft/worker.h"

namespace outrider {

// Until the coordinator says shutdown. takes_cpu: the model's steps compute on this host's CPUs;
// those of a simulated one, or on a GPU, only wait. Throws Error when the coordinator is gone, or
// the worker cannot go on.
void run_draft_loop(World& world, uint32_t epoch, bool takes_cpu, DraftWorker& worker);

// Of a draft that cannot go on and cannot be started again either: takes part in the end of the
// job, and does nothing until then.
void wait_for_shutdown(World& world, uint32_t epoch);

}  // namespace outrider
