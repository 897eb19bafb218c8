// What a rank takes of its host before it loads a model: threads on CPUs, and a GPU.
#pragma once

#include <functional>

#include "runtime/base/settings/run_config.h"
#include "runtime/comm/world/world.h"
#include "runtime/ops/thread_plan.h"
#include "runtime/ranks/loading/device_assignment.h"
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

// The target's GPU, or the draft's; an empty assignment where that computes elsewhere. Throw Error
// when there is no such GPU.
DeviceAssignment target_assignment(const RunConfig& config,
                                   const World& world,
                                   const RankLayout& layout);
DeviceAssignment draft_assignment(const RunConfig& config,
                                  const World& world,
                                  const RankLayout& layout);

// Takes the rank's assignment and compares it with the other ranks'. take: one of the two above.
// call: hands the rank's descriptor to check_devices() (device_check.h) and returns its answer.
// Throws what all ranks stop with, a problem of take on any of them included.
DeviceAssignment agreed_assignment(const std::function<DeviceAssignment()>& take,
                                   const std::function<Bytes(const Bytes& descriptor)>& call);

}  // namespace outrider
