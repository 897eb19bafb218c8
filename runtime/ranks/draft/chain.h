// What the draft worker knows of one sequence. A chain is a run of draft tokens behind a text, with
// its KV. The main chain is the chain behind the committed text: the block that is wanted, or that
// the target is verifying, and one token more. A branch is a chain behind a text that may come:
// some of the main chain's tokens and a guess at the token after them; its tokens are for the next
// round.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/text/vocabulary_map.h"
#include "runtime/base/clock.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/pacing/acceptance.h"
#include "scheduler/pacing/fan_out.h"
#include "scheduler/round.h"
#include "scheduler/sampling/token_mask.h"

namespace outrider {

struct DraftChain {
  std::vector<int32_t> blocks;      // KV table
  std::vector<DraftToken> drafted;  // the block so far
  std::vector<Guesses> others;      // one per drafted token: what may come in its place
  int32_t num_sent = 0;             // of the drafted ones
  ProcessedRows processed;          // of its text
  bool ended = false;  // there will be no more: unusable logits, no room for its keys and values

  int32_t num_drafted() const { return static_cast<int32_t>(drafted.size()); }
};

struct DraftBranch {
  int32_t num_accepted = 0;  // tokens of the main chain before the guess
  int32_t guess = 0;
  double chance = 0;
  int32_t wanted = 0;  // tokens of its block
  DraftChain chain;
  size_t num_shared = 0;  // blocks at the front of its table that are the main chain's
  int32_t num_in_kv = 0;  // of the guess and the drafted tokens; those before lie in shared and
                          // copied blocks
  bool complete() const { return chain.ended || chain.num_drafted() >= wanted; }
};

// After the whole block, while its last row is not computed: guesses are known by rank only.
struct PendingOutcome {
  int32_t rank = 0;
  double chance = 0;
};

struct DraftSequence {
  SamplingParams params;
  std::shared_ptr<const TokenMask> mask;  // null without one
  // Off: blocks are sent when they are whole, and only those that are waited for are made.
  // Otherwise tokens are sent as they come. Never kAuto.
  AsyncDrafting mode = AsyncDrafting::kOff;
  int32_t num_prompt_tokens = 0;
  std::vector<int32_t> tokens;     // committed
  TranslatedTokens translated;     // of these, when there is a vocabulary
  std::vector<int32_t> kv_tokens;  // tokens whose keys and values lie in the main chain's blocks,
                                   // in order; in the draft's ids
  DraftChain main_chain;
  uint32_t round = 0;      // of the main chain's block
  int32_t draft_len = 0;   // 0 = none wanted
  int32_t in_flight = -1;  // tokens of it that are being verified; -1: somebody waits for it
  int32_t guess = -1;      // that the main chain's block was made behind, when it was a branch
  bool answered = false;   // that there is nothing more of the main chain's block
  std::vector<DraftBranch> branches;
  std::vector<PendingOutcome> pending;  // branches to come when the bonus draft is there
  AcceptanceCounts acceptance;
  JobClock::time_point verify_began{};  // when the round began
  bool broken = false;  // a gap in what we were told, or a token the model has no row for; silent
                        // until opened anew

  bool drafts_async() const {
    return mode != AsyncDrafting::kOff && in_flight >= 0 && draft_len > 0;
  }
  bool urgent() const { return draft_len > 0 && in_flight < 0; }
  // Tokens of the main chain's block; while the target verifies, one more than are verified: the
  // bonus draft.
  int32_t wanted() const { return urgent() ? draft_len : drafts_async() ? in_flight + 1 : 0; }
};

}  // namespace outrider
