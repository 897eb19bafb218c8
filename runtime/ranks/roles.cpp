// See roles.h.
#include "runtime/ranks/roles.h"

#include <fmt/format.h>

#include "runtime/base/error.h"

namespace outrider {

Role RankLayout::role(int rank) const {
  if (rank == 0) return Role::kCoordinator;
  return rank < num_targets ? Role::kTarget : Role::kDraft;
}

std::string RankLayout::name(int rank) const {
  switch (role(rank)) {
    case Role::kCoordinator:
      return fmt::format("coordinator+target[0/{}]", num_targets);
    case Role::kTarget:
      return fmt::format("target[{}/{}]", rank, num_targets);
    case Role::kDraft:
      return "draft";
  }
  return "";
}

std::string RankLayout::text() const {
  return fmt::format("{} target {}{}",
                     num_targets,
                     num_targets == 1 ? "rank" : "ranks",
                     has_draft ? " and a draft" : "");
}

RankLayout make_layout(const RunConfig& config, int world_size) {
  RankLayout layout;
  const std::string& method = config.speculative.method;
  const bool others_may_attach = !config.speculative.draft_listen.empty();
  if (others_may_attach && method != "auto" && method != "draft_model")
    throw Error(fmt::format("draft_listen is for draft models, but speculative_config.method is {}",
                            method));
  layout.has_draft = config.speculative.model.empty()
                         ? method == "draft_model" && !others_may_attach
                         : method == "draft_model" || method == "auto";
  const int num_drafts = layout.has_draft ? 1 : 0;
  if (world_size == 0) {
    layout.num_targets = config.tensor_parallel_size > 0 ? config.tensor_parallel_size : 1;
    return layout;
  }
  layout.num_targets =
      config.tensor_parallel_size > 0 ? config.tensor_parallel_size : world_size - num_drafts;
  if (layout.num_targets < 1 || layout.num_ranks() != world_size) {
    throw Error(
        fmt::format("{} ranks were started, but tensor_parallel_size {} and {} draft worker need "
                    "{}: start mpirun -np {}",
                    world_size,
                    layout.num_targets < 1 ? 1 : layout.num_targets,
                    layout.has_draft ? "one" : "no",
                    std::max(1, layout.num_targets) + num_drafts,
                    std::max(1, layout.num_targets) + num_drafts));
  }
  return layout;
}

}  // namespace outrider
