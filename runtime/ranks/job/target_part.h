// A target rank's part of a job, rank 0's with it: its GPU and its shard, the ready barrier, then
// rounds until the job is over.
#pragma once

#include "runtime/ranks/job/job_mode.h"
#include "runtime/ranks/job/job_rank.h"
#include "runtime/ranks/job/serving_resources.h"

namespace outrider {

// Returns the rank's exit code; 0 of all but rank 0 where there is a front end. Throws Error, the
// same on all ranks, for a problem before the first round; later ones end the job.
// resources: rank 0's, where there is a front end.
int run_target(const JobRank& rank, const JobMode& mode, const ServingResources& resources);

}  // namespace outrider
