// One rank of a job as its part in it is given it: by reference, for as long as the job lasts.
#pragma once

#include "runtime/base/settings/run_config.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/job/trace_gather.h"
#include "runtime/ranks/roles.h"

namespace outrider {

struct JobRank {
  World& world;
  const RunConfig& config;
  const RankLayout& layout;
  JobTrace& trace;
};

}  // namespace outrider
