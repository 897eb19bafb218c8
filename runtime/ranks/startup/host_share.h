// What a rank takes of its host before it loads a model: threads on CPUs, and a GPU.
#pragma once

#include <functional>

#include "runtime/base/run_config.h"
#include "runtime/comm/world/world.h"
#include "runtime/ops/thread_plan.h"
#include "runtime/ranks/loading/gpu_seat.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// The draft works while the targets wait and the other way round, so it does not count: its CPUs
// are the targets' too, and all of them when it has none of its own. Throws Error where the options
// ask for what the host does not have.
ops::ThreadPlan threads_of_rank(const RunConfig& config,
                                const World& world,
                                const RankLayout& layout,
                                Role role);

// For the report of a draft rank whose child computes, and says so itself when there is a problem.
int num_threads_of_draft(const RunConfig& config, const World& world, const RankLayout& layout);

// The target's GPU, or the draft's; an empty seat where that computes elsewhere. Throw Error when
// there is no such GPU.
GpuSeat target_seat(const RunConfig& config, const World& world, const RankLayout& layout);
GpuSeat draft_seat(const RunConfig& config, const World& world, const RankLayout& layout);

// Takes the rank's seat and compares it with the other ranks'. take: one of the two above. call:
// hands the rank's claim to call_gpus() (gpu_call.h) and returns its answer. Throws what all ranks
// stop with, a problem of take on any of them included.
GpuSeat agreed_seat(const std::function<GpuSeat()>& take,
                    const std::function<Bytes(const Bytes& claim)>& call);

}  // namespace outrider
