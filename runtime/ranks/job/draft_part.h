// The draft's part of a job: its GPU and its model, the ready barrier, then what the coordinator
// asks for. It is a thread, or under MPI a rank that passes messages on and a process with the
// model, started again when it dies (draft/engine.h).
#pragma once

#include <memory>

#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/draft/engine.h"
#include "runtime/ranks/job/job_rank.h"

namespace outrider {

// The engine, on the draft rank; null on the others, and where the launcher does not say early
// enough which rank this is. Forks, so to be called before MPI_Init, when only the environment can
// tell.
std::unique_ptr<DraftEngine> start_draft_engine(const RunConfig& config);

// Until the job is over. engine: what computes; null: this thread does. Throws Error, the
// same on all ranks, for a problem before the first round.
void run_draft(const JobRank& rank, DraftEngine* engine);

}  // namespace outrider
