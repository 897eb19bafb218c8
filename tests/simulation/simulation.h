// Jobs that meet faults by seed in virtual time, in two forms, with every invariant of
// docs/round.md checked (witness.h, clients.h):
// - simulate_rounds: everything on one thread. The coordinator and target ranks are the real ones,
//   each rank with the whole vocabulary; the draft is the real worker, stepped from outside.
//   Thousands of rounds a second.
// - simulate_job: a thread for each rank and the clients: also the ranks' own loops, shards with
//   their sums, and the draft's loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/setting.h"

namespace outrider::test {

struct SimulationResult {
  std::vector<std::string> faults;
  uint64_t digest = 0;  // of all plans and decisions
  double seconds = 0;   // of virtual time
  uint64_t num_rounds = 0;
  uint64_t num_tokens = 0;
  uint64_t num_compared = 0;  // texts, with what the target alone writes
  uint64_t num_drafts_judged = 0;
  uint64_t num_accepted = 0;
  uint64_t num_link_faults = 0;
  uint64_t num_lies = 0;
  uint64_t num_lives = 0;  // of the draft
  uint64_t num_preempted = 0;
  uint64_t num_cancelled = 0;
  uint64_t num_failed = 0;
  uint64_t num_waits = 0;   // rounds that waited for the draft
  uint64_t num_reused = 0;  // positions whose KV was there
  uint64_t num_bonus_drafts = 0;
  uint64_t num_hits = 0;  // blocks that were prepared for the outcome that came

  void add(const SimulationResult& other);
};

// At most one at a time in a process: virtual time is the process's.
SimulationResult simulate_rounds(uint64_t seed, Sabotage sabotage = Sabotage::kNone);
SimulationResult simulate_job(uint64_t seed, Sabotage sabotage = Sabotage::kNone);

}  // namespace outrider::test
