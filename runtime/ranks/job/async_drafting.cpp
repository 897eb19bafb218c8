// See async_drafting.h.
#include "runtime/ranks/job/async_drafting.h"

#include "models/simulated/spec.h"

namespace outrider {

AsyncDrafting resolve_async_drafting(const RunConfig& config,
                                     const RankLayout& layout,
                                     const Topology& topology,
                                     int num_cpus) {
  if (topology.draft_translates) return AsyncDrafting::kOff;
  const AsyncDrafting asked = async_drafting_from_name(config.speculative.async_drafting).value();
  if (asked != AsyncDrafting::kAuto) return asked;
  if (topology.draft_shares_gpu) return AsyncDrafting::kOff;
  if (!layout.has_draft || is_simulated(config.model)) return AsyncDrafting::kCache;
  const RankPlace& draft = topology.ranks.at(static_cast<size_t>(layout.draft_rank()));
  int num_threads = draft.num_threads;
  bool shares = false;
  for (int rank = 0; rank < layout.num_targets; ++rank) {
    const RankPlace& target = topology.ranks.at(static_cast<size_t>(rank));
    if (target.host != draft.host) continue;
    shares = true;
    num_threads += target.num_threads;
  }
  return shares && num_threads > num_cpus ? AsyncDrafting::kOff : AsyncDrafting::kCache;
}

}  // namespace outrider
