// The ready barrier: every rank says that it is ready or why not; rank 0 says which ranks it
// is still waiting for, and all go on together or all stop with one sentence.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"

namespace outrider {

struct Readiness {
  std::string problem;        // empty when this rank is ready
  int32_t num_threads = 0;    // this rank computes with; for reports
  std::string device;         // it computes on: its GPU's name, or "cpu"; for reports
  int32_t num_kv_blocks = 0;  // of this target rank; 0: not a target
  bool translates = false;    // a draft whose tokens are not the target's
  bool shares_gpu = false;    // a draft on a target's GPU
  std::string host;           // filled in by the barrier
};
void fields_of(auto& wire, Is<Readiness> auto& readiness) {
  wire.fields(readiness.problem, readiness.num_threads, readiness.device, readiness.num_kv_blocks);
  wire.fields(readiness.translates, readiness.shares_gpu, readiness.host);
}

struct RankPlace {
  int rank = 0;
  std::string role;  // RankLayout::name
  std::string host;
  int num_threads = 0;
  std::string device;  // as Readiness::device
};

// Who runs where.
struct Topology {
  std::vector<RankPlace> ranks;
  std::string library;  // World::library
  int32_t num_kv_blocks =
      0;  // what every target rank has; GPUs may have room for different numbers
  bool draft_translates = false;
  bool draft_shares_gpu = false;
};

// Throws Error on every rank when any has a problem or does not report
// within timeout_s; the sentence names rank, host and role. Rank 0 logs the table and gets it; the
// others get an empty one.
Topology ready_barrier(World& world,
                       const RankLayout& layout,
                       const Readiness& readiness,
                       double timeout_s = 600);

// After what the targets did together: throws the first problem on all ranks. One that all targets
// have is theirs together and stands as it is; others are said with rank, role and host.
void checked_barrier(World& world,
                     const RankLayout& layout,
                     const std::string& problem,
                     double timeout_s = 600);

}  // namespace outrider
