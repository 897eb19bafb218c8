// What a simulation draws from its seed: sizes, costs, what its clients ask for, and how often what
// goes wrong. The same seed gives the same simulation on every machine.
#pragma once

#include <cstdint>

#include "scheduler/batching/planner_config.h"
#include "scheduler/sampling_params.h"
#include "tests/simulation/toy_model.h"

namespace outrider::test {

// Draws that depend on the seed alone.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  uint64_t bits() { return mix_seed(seed_, count_++); }
  int32_t below(int32_t limit) {
    return static_cast<int32_t>(bits() % static_cast<uint64_t>(limit));
  }
  int32_t between(int32_t least, int32_t most) { return least + below(most - least + 1); }
  bool chance(int32_t permille) { return below(1000) < permille; }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

// Of the link to and from the draft, per mille of frames.
struct LinkFaults {
  int32_t dropped = 0;
  int32_t doubled = 0;
  int32_t late = 0;     // by up to `latest_us`: so frames overtake each other
  int32_t flipped = 0;  // one bit
  int32_t cut = 0;
  int32_t stale = 0;  // carries another life's epoch
  int32_t usual_us = 0;
  int32_t latest_us = 0;
};

struct DraftFaults {
  int32_t lies = 0;    // per mille of the blocks it sends
  int32_t deaths = 0;  // per mille of its steps; half of them are told to the coordinator
  int32_t stalls = 0;
  int32_t longest_away_us = 0;  // of both
  int32_t joins_after_us = 0;
};

struct ClientHabits {
  int32_t num_requests = 0;
  int32_t arrivals = 0;  // per mille of rounds
  int32_t cancels = 0;   // per mille of rounds
  int32_t shared_beginnings = 0;
  int32_t spoiled = 0;  // per mille of requests: NaN in their logits
  bool priorities = false;
  int32_t stops = 0;  // per mille of rounds: the server is stopped at once
};

// Breaks one thing on purpose, to show that the checks can fail.
enum class Sabotage : uint8_t {
  kNone,
  kLateBlock,     // a block that comes late is delivered as if it were for the round that is next
  kForeignBlock,  // a rank is told a KV block that another sequence holds
  kKeepDirt,      // blocks are handed on as they were left, NaN and all
  kFlipDecision,  // one rank decides otherwise
  kSlowLook,      // a look for blocks takes longer than the round may wait
  kOtherText,     // clients expect what another model would say
  kLostEvent,     // a stream loses an event
};

inline constexpr int32_t kNumCandidates = 16;  // of a draft token's distribution

struct Setting {
  uint64_t seed = 0;
  Sabotage sabotage = Sabotage::kNone;
  PlannerConfig planner;
  int32_t num_targets = 2;
  ToyLaw law;
  ToyModel::Options target;
  ToyModel::Options draft;
  int32_t draft_blocks = 0;
  AsyncDrafting async_drafting = AsyncDrafting::kCache;
  bool chooses_draft_len = true;
  bool poisons = false;  // freed blocks are full of NaN, on the ranks and the draft
  LinkFaults to_draft;
  LinkFaults from_draft;
  DraftFaults draft_faults;
  ClientHabits clients;

  ModelOptions target_sizes() const;
  ModelOptions draft_sizes() const;
};
Setting random_setting(uint64_t seed, Sabotage sabotage = Sabotage::kNone);

}  // namespace outrider::test
