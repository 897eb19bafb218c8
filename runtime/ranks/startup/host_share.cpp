// See host_share.h.
#include "runtime/ranks/startup/host_share.h"

#include "models/simulated/spec.h"
#include "runtime/base/error.h"
#include "runtime/ranks/loading/gpu_demands.h"
#include "runtime/ranks/startup/gpu_call.h"
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
  const auto ride_ahead = ride_ahead_from_name(config.speculative.ride_ahead).value();
  const bool rides_ahead = ride_ahead == RideAhead::kChain || ride_ahead == RideAhead::kCache;
  return ops::plan_threads(
      {.num_threads = config.threads,
       .cpu_bind = config.cpu_bind,
       .on_host = {world.num_ranks_here(before), world.num_ranks_here(num_targets)},
       .on_cpus = {world.num_ranks_on_these_cpus(before),
                   world.num_ranks_on_these_cpus(num_targets)},
       // Targets on GPUs leave the CPUs to it, and it rides ahead.
       .takes_turns = is_draft && !rides_ahead && config.device == "cpu"});
}

int num_threads_of_draft(const RunConfig& config, const World& world, const RankLayout& layout) {
  try {
    return threads_of_rank(config, world, layout, Role::kDraft).num_threads;
  } catch (const Error&) {
    return 0;
  }
}

GpuSeat target_seat(const RunConfig& config, const World& world, const RankLayout& layout) {
  if (config.device != "cuda" || is_simulated(config.model)) return {};
  return take_gpu_seat(
      config, place_on_host(world, layout, Role::kTarget), is_draft_on_gpu(config));
}

GpuSeat draft_seat(const RunConfig& config, const World& world, const RankLayout& layout) {
  if (!is_draft_on_gpu(config) || is_simulated(config.speculative.model)) return {};
  return take_gpu_seat(config, place_on_host(world, layout, Role::kDraft), true);
}

GpuSeat agreed_seat(const std::function<GpuSeat()>& take,
                    const std::function<Bytes(const Bytes& claim)>& call) {
  GpuSeat seat;
  GpuClaim claim;
  try {
    seat = take();
    claim = claim_of(seat);
  } catch (const std::exception& error) {
    claim.problem = error.what();
  }
  settle_seat(call(encode_claim(claim)), seat);
  return seat;
}

}  // namespace outrider
