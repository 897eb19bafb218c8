// A random life of a planner: requests come, are cancelled, drafts are right, wrong, late or lies,
// blocks are scarce. run_scenario() plays it against the fakes and reports everything that broke a
// promise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/batching/planner.h"
#include "tests/scheduler/fake_ranks.h"

namespace outrider::testing {

struct Scenario {
  PlannerConfig planner;
  FakeModel model;
  DraftMood mood = DraftMood::kRight;
  int32_t num_requests = 8;
  int32_t arrival_percent = 50;       // chance of a further arrival, per round
  int32_t cancel_percent = 0;         // chance that some request is cancelled, per round
  int32_t fail_percent = 0;           // chance that some planned sequence has NaN, per round
  int32_t draft_flips_percent = 0;    // chance that the draft goes away or comes back, per round
  int32_t shared_prompt_percent = 0;  // chance that a prompt begins like an earlier text
  bool priorities = false;
  Sabotage sabotage = Sabotage::kNone;
  uint32_t seed = 1;
};
Scenario random_scenario(uint32_t seed);

struct Outcome {
  std::vector<std::string> faults;
  uint64_t plans_digest = 0;  // of every plan and event, in order
  uint64_t num_rounds = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_chunks = 0;  // sequences that computed rows and did not sample
  uint64_t num_tokens = 0;
  uint64_t num_draft_tokens = 0;
  uint64_t num_accepted = 0;
  uint64_t num_bonus_drafts = 0;           // judged behind a block
  uint64_t num_accepted_bonus_drafts = 0;  // of these
  uint64_t num_lookups = 0;                // rounds for whose outcome the draft could prepare
  uint64_t num_hits = 0;                   // of these, whose outcome was prepared
  uint64_t num_stops = 0;
  uint64_t num_cancelled = 0;
  uint64_t num_failed = 0;
  uint64_t num_emptied = 0;  // blocks told to be empty
  uint64_t num_reused = 0;   // positions of prompts that were not computed
};
Outcome run_scenario(const Scenario& scenario);

}  // namespace outrider::testing
