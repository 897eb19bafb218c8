// One job from start to end, on every rank and in both forms (MPI processes, or threads of one
// process): who the ranks are, then each one's part (job/). What the job is for (serve, batch,
// bench) is a front end on rank 0.
#pragma once

#include "runtime/base/settings/run_config.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/job/job_mode.h"
#include "runtime/ranks/job/launch.h"

namespace outrider {

// Returns the exit code of this process (0 on ranks other than 0). A start-up problem is an Error;
// under MPI rank 0 says it on stderr and all ranks return 2.
// In one process the job runs under the virtual clock when there is one, front end included; under
// MPI that is an error.
int run_job(const RunConfig& config,
            const Launch& launch,
            const FrontEnd& front_end,
            const JobExtras& extras = {});

// One rank of a job, in a process that somebody else started and gave a world: as run_job under
// MPI, but the draft computes in its rank's own process.
int run_job_in(World& world, const RunConfig& config, const FrontEnd& front_end);

// As run_job, but every rank is a target and runs body.
int run_on_targets(const RunConfig& config, const Launch& launch, const OnTargets& body);

}  // namespace outrider
