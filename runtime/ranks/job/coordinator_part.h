// Rank 0's part of a job once it has its shard: the coordinator's rounds on this thread, the front
// end on another.
#pragma once

#include "runtime/ranks/job/job_mode.h"
#include "runtime/ranks/job/job_rank.h"
#include "runtime/ranks/job/serving_resources.h"
#include "runtime/ranks/target/target.h"

namespace outrider {

// Until the front end has returned and its work is done; returns the front end's exit code, or
// throws what it threw. An error in a round ends the job here.
int run_coordinator(const JobRank& rank,
                    TargetRank& target,
                    const ServingResources& resources,
                    const Topology& topology,
                    const FrontEnd& front_end);

}  // namespace outrider
