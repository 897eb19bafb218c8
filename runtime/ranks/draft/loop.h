// The life of the draft rank: takes the coordinator's requests, steps while there is work, sends
// what is new. Runs on the draft's thread, or in the draft engine's process (draft/engine.h).
#pragma once

#include "runtime/comm/world/world.h"
#include "runtime/ranks/draft/worker.h"

namespace outrider {

// Until the coordinator says shutdown or is gone. takes_cpu: the model's steps compute on this
// host's CPUs; those of a simulated one, or on a GPU, only wait.
void run_draft_loop(World& world, uint32_t epoch, bool takes_cpu, DraftWorker& worker);

}  // namespace outrider
