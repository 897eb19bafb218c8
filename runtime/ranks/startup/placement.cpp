// See placement.h.
#include "runtime/ranks/startup/placement.h"

#include "models/simulated/spec.h"
#include "runtime/base/error.h"
#include "runtime/ranks/loading/gpu_memory.h"
#include "runtime/ranks/startup/device_check.h"
#include "scheduler/request.h"

namespace outrider {
namespace {

HostPlace place_on_host(const World& world, const RankLayout& layout, Role role) {
  const int num_targets = world.num_ranks_here(layout.num_targets);
  return {.index = role == Role::kDraft ? num_targets : world.num_ranks_here(world.rank()),
          .num_targets = num_targets,
          .has_draft = world.num_ranks_here(layout.num_ranks()) > num_targets};
}

}  // namespace

ops::ThreadPlan threads_of_rank(const RunConfig& config,
                                const World& world,
                                const RankLayout& layout,
                                Role role) {
  const int num_targets = layout.num_targets;
  const bool is_draft = role == Role::kDraft;
  const int before = is_draft ? num_targets : world.rank();
  const auto async_drafting = async_drafting_from_name(config.speculative.async_drafting).value();
  const bool drafts_async =
      async_drafting == AsyncDrafting::kChain || async_drafting == AsyncDrafting::kCache;
  return ops::plan_threads(
      {.num_threads = config.threads,
       .cpu_bind = config.cpu_bind,
       .on_host = {world.num_ranks_here(before), world.num_ranks_here(num_targets)},
       .on_cpus = {world.num_ranks_on_these_cpus(before),
                   world.num_ranks_on_these_cpus(num_targets)},
       // Targets on GPUs leave the CPUs to it, and it drafts asynchronously.
       .takes_turns = is_draft && !drafts_async && config.device == "cpu"});
}

int num_threads_of_draft(const RunConfig& config, const World& world, const RankLayout& layout) {
  try {
    return threads_of_rank(config, world, layout, Role::kDraft).num_threads;
  } catch (const Error&) {
    return 0;
  }
}

DeviceAssignment target_assignment(const RunConfig& config,
                                   const World& world,
                                   const RankLayout& layout) {
  if (config.device != "cuda" || is_simulated(config.model)) return {};
  return assign_device(
      config, place_on_host(world, layout, Role::kTarget), is_draft_on_gpu(config));
}

DeviceAssignment draft_assignment(const RunConfig& config,
                                  const World& world,
                                  const RankLayout& layout) {
  if (!is_draft_on_gpu(config) || is_simulated(config.speculative.model)) return {};
  return assign_device(config, place_on_host(world, layout, Role::kDraft), true);
}

DeviceAssignment agreed_assignment(const std::function<DeviceAssignment()>& take,
                                   const std::function<Bytes(const Bytes& descriptor)>& call) {
  DeviceAssignment assignment;
  DeviceDescriptor descriptor;
  try {
    assignment = take();
    descriptor = descriptor_of(assignment);
  } catch (const std::exception& error) {
    descriptor.problem = error.what();
  }
  settle_assignment(call(encode_descriptor(descriptor)), assignment);
  return assignment;
}

}  // namespace outrider
