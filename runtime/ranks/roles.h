// Who does what in a job:
//
// clang-format off
//   world rank  role         owns                              receives                 sends
//   0           coordinator  queue, planner, page tables, HTTP draft blocks, requests   plans, commits
//   0 .. R-1    target       a shard of the target and its KV  plans                    partial sums, statistics
//   R           draft        the draft model and its KV        commits                  draft blocks
// clang-format on
//
// Rank 0 is coordinator and target shard 0. Only the coordinator plans. The same layout holds for
// MPI processes and for threads of one process; under MPI the draft's model lives in a child of its
// rank (draft/engine.h).
#pragma once

#include <string>

#include "runtime/base/settings/run_config.h"

namespace outrider {

enum class Role { kCoordinator, kTarget, kDraft };

struct RankLayout {
  int num_targets = 1;
  bool has_draft = false;

  int num_ranks() const { return num_targets + (has_draft ? 1 : 0); }
  int draft_rank() const { return num_targets; }
  Role role(int rank) const;
  std::string name(int rank) const;  // "target[1/2]", for logs and errors
  std::string text() const;          // "2 target ranks and a draft"
};

// How many ranks of each role world_size ranks become; world_size 0 = one process, which has as
// many as it needs. Throws Error when the sizes do not fit.
RankLayout make_layout(const RunConfig& config, int world_size);

}  // namespace outrider
