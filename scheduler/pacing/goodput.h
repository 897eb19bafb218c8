// Go or wait, and how many draft tokens of each sequence a round verifies: the choice that brings
// most tokens per second of the whole batch. Pure: what is known goes in, the choice comes out; no
// clock, no memory (scheduler/pacing/speculation.h keeps what was learned). The coordinator alone
// chooses; the ranks see the plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/block_source.h"
#include "scheduler/pacing/step_times.h"

namespace outrider {

inline constexpr int32_t kMostDraftTokens = 64;

// survival[i]: the chance that draft tokens 0 .. i of a block all stand. Never rises with i.
using SurvivalCurve = std::array<float, kMostDraftTokens>;

// A running sequence that will sample in the round that is to come.
struct SequenceState {
  uint64_t sequence_id = 0;
  int32_t num_context = 0;  // its tokens
  int32_t limit = 0;        // longest draft that makes sense for it
  int32_t num_at_hand = 0;  // draft tokens of its block that are there
  // Whether the draft is at work on its block, or will be as soon as it is told that the round
  // waits. False with an n-gram draft, and when the draft is away.
  bool more_coming = false;
  // Since its block's last token came; when none has, since it was asked for; -1 = not asked yet.
  double waited_s = -1;
  // The draft answers once, with its whole block; asked_len = how long a block is on its way, 0 =
  // none.
  bool in_one_piece = false;
  int32_t asked_len = 0;
  bool fixed = false;  // gets as many tokens as its limit, whatever they bring
  // What another source has at hand in place of a block that is not there.
  BlockSource backup_source = BlockSource::kNone;
  int32_t backup_len = 0;
  int32_t match_len = 0;
  bool judges_backup = false;  // what is at hand is the backup
};

struct RoundState {
  std::vector<SequenceState> sequences;
  // Those and the ones that read their prompts or have just come.
  int32_t num_running = 0;
  // Rows of prompts in the same step; the positions that are read for them, and those that they
  // attend to, in all.
  int32_t num_prompt_rows = 0;
  int64_t num_prompt_kv_positions = 0;
  int64_t num_prompt_positions = 0;
  int32_t max_rows = 1 << 30;  // of the step, everything counted
  bool may_wait = true;        // false: the deadline has passed
};

struct SequenceChoice {
  uint64_t sequence_id = 0;
  // Draft tokens to verify. More than are at hand: those are what is waited for.
  int32_t draft_len = 0;
  // How long its next blocks should be, should the draft have the time.
  int32_t wanted_len = 0;
  bool uses_backup = false;  // draft_len tokens of its backup, not of its block
};

struct RoundChoice {
  bool wait = false;
  double wait_s = 0;        // expected; who has waited much longer should ask anew, or go
  bool draft_works = true;  // false: the draft should hear nothing and compute nothing
  double value = 0;         // expected tokens - price * time
  std::vector<SequenceChoice> sequences;  // in the state's order
};

// What the choice is made from, for the sequences of the state in its order.
struct GoodputInputs {
  std::vector<SurvivalCurve> survival;
  const StepTimes* steps = nullptr;  // of the target, as things are (draft idle or at work)
  // Of the round beside wait and step, by its rows; null = nothing.
  const StepTimes* overhead = nullptr;
  double price = 0;          // tokens per second that the job is making
  double first_token_s = 0;  // from "the round waits" to the first draft tokens
  double token_s = 0;        // between draft tokens of a block, all sequences at once
  // Chance that the next round finds its block prepared, when all draft tokens of this one stand
  // and when not; and how many tokens it then has.
  double hit_if_all_stand = 0;
  double hit_if_not = 0;
  int32_t num_prepared = 0;
};

// What it brings that a round of so many sequences finds a block of this one prepared: tokens at
// once, and no wait for those that would be waited for.
double worth_of_hit(const GoodputInputs& inputs,
                    const SurvivalCurve& survival,
                    size_t num_sequences);

// Renewal-reward (Dinkelbach 1967): with g the rate that is being made, the round is chosen that
// maximises expected tokens - g * (wait + step time). So a draft token is waited for if the
// sequences' chances that it stands sum to more than g * its time, and it gets a row if its chance
// is more than g * what the row adds to the step; rows go to the likeliest tokens first (as in
// vLLM's adaptive verification). draft_works is left true.
RoundChoice choose_round(const RoundState& state, const GoodputInputs& inputs);

}  // namespace outrider
