// See ride_ahead.h.
#include "runtime/ranks/job/ride_ahead.h"

#include "models/simulated/spec.h"

namespace outrider {

RideAhead resolve_ride_ahead(const RunConfig& config,
                             const RankLayout& layout,
                             const Topology& topology,
                             int num_cpus) {
  if (topology.draft_translates) return RideAhead::kOff;
  const RideAhead asked = ride_ahead_from_name(config.speculative.ride_ahead).value();
  if (asked != RideAhead::kAuto) return asked;
  if (!layout.has_draft || is_simulated(config.model)) return RideAhead::kCache;
  const RankPlace& draft = topology.ranks.at(static_cast<size_t>(layout.draft_rank()));
  int num_threads = draft.num_threads;
  bool shares = false;
  for (int rank = 0; rank < layout.num_targets; ++rank) {
    const RankPlace& target = topology.ranks.at(static_cast<size_t>(rank));
    if (target.host != draft.host) continue;
    shares = true;
    num_threads += target.num_threads;
  }
  return shares && num_threads > num_cpus ? RideAhead::kOff : RideAhead::kCache;
}

}  // namespace outrider
