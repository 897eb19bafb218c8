// The life of the draft rank: takes the coordinator's requests, steps while there is work, sends
// what is new. Runs on the draft's thread, or in the draft engine's process (draft_engine.h).
#pragma once

#include "runtime/comm/world.h"
#include "runtime/ranks/draft.h"

namespace outrider {

// Until the coordinator says shutdown or is gone.
void run_draft_loop(World& world, uint32_t epoch, DraftWorker& worker);

}  // namespace outrider
