// The messages of a round as plain values (docs/round.md): what the coordinator plans, what every
// target rank decides from the same bytes, and what goes to and comes from the draft. runtime/ranks
// frames them for the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/block_source.h"
#include "runtime/base/short_list.h"
#include "scheduler/sampling_params.h"
#include "scheduler/token_logprobs.h"

namespace outrider {

// One entry of a draft's (truncated, renormalised) distribution.
struct DraftCandidate {
  int32_t token = 0;
  float draft_prob = 0.0f;
  bool operator==(const DraftCandidate&) const = default;
};

// So many candidates are usual (num_draft_candidates); a list of them takes no heap memory.
inline constexpr size_t kUsualCandidates = 16;
using DraftCandidates = ShortList<DraftCandidate, kUsualCandidates>;

// A proposed token with the distribution it was drawn from. No candidates means draft_prob = 1 on
// the token: a greedy or n-gram draft, and every draft under the coupled rule.
struct DraftToken {
  int32_t token = 0;
  DraftCandidates candidates;  // descending draft_prob, contains token
  bool operator==(const DraftToken&) const = default;
};

// ---- coordinator -> every target rank
// -------------------------------------------------------------------------

// Also what the draft hears first of a sequence.
struct SequenceStart {
  uint64_t sequence_id = 0;
  SamplingParams params;
  std::vector<int32_t> tokens;    // the sequence so far
  int32_t num_output_tokens = 0;  // of these
};

// Rows of one sequence in this round: committed tokens [first_position, first_position +
// num_committed_rows) and then the draft tokens. When the committed rows reach the end of the
// sequence it samples: the last committed row and every draft row then have logits (draft.size() +
// 1 of them). Prefill chunk, plain decode and verify are the same thing with other numbers.
struct SequencePlan {
  uint64_t sequence_id = 0;
  uint32_t round = 0;          // this sequence's sampling rounds so far; part of the noise keys
  int32_t first_position = 0;  // KV before it is kept, everything from it on is (re)computed
  int32_t num_committed_rows = 1;
  std::vector<DraftToken> draft;
  // A further draft token, without a row of its own: judged in the last row, where the bonus token
  // would be drawn, so that what the draft has made behind it stays good when it stands. Standard
  // and block rules only; not empty only when the sequence samples.
  std::optional<DraftToken> bonus_draft;
  // The block table is new_blocks from now on: after preemption, and when unused blocks at its end
  // were taken back. KV before first_position stays where it is.
  bool replace_blocks = false;
  ShortList<int32_t, 4> new_blocks;         // appended to the block table
  BlockSource source = BlockSource::kNone;  // of `draft`; stays with the coordinator
};

struct RoundPlan {
  uint64_t round = 0;
  bool shutdown = false;       // last plan: leave the loop after it
  std::vector<uint64_t> ends;  // sequences to forget, before starts
  std::vector<SequenceStart> starts;
  std::vector<SequencePlan> sequences;
  std::vector<std::shared_ptr<const Grammar>>
      grammars;  // of later starts, to be compiled meanwhile
  // Not 0: no round at all, but one forward pass of so many made-up rows, to see what it takes.
  // Before the first request: it writes into KV blocks that nobody holds yet.
  int32_t num_probe_rows = 0;
  // What the draft tokens were drawn from is told while the step runs, which does not need it.
  bool candidates_follow = false;
  // After its forward pass every rank but 0 receives a LateDraftTokens before it verifies.
  bool awaits_bonus_drafts = false;
  // Blocks that hold nothing any more. Told only under OUTRIDER_CHECKS=poison: every rank fills
  // them with NaN before anything else, so that whoever still reads them is noticed.
  std::vector<int32_t> freed;
};

// Bonus drafts that came while the ranks computed, in the plan's order of sequences; they take the
// place of SequencePlan::bonus draft token where that is empty.
struct LateDraftToken {
  uint64_t sequence_id = 0;
  DraftToken token;
};

struct LateDraftTokens {
  uint64_t round = 0;
  std::vector<LateDraftToken> bonus_drafts;
};

// ---- decided alike on every target rank
// -----------------------------------------------------------------------

struct SequenceDecision {
  uint64_t sequence_id = 0;
  int32_t num_accepted = 0;  // draft tokens that were accepted
  int32_t next_token =
      -1;               // correction, bonus or plain sample; -1 when the sequence did not sample
  bool failed = false;  // NaN or infinity in this sequence's logits; nothing was committed
  bool no_token_allowed = false;        // failed for this reason instead: masks forbade every token
  std::vector<TokenLogprobs> logprobs;  // num_accepted + 1, when asked for
  std::vector<TokenLogprobs>
      prompt_logprobs;  // of the prompt tokens after each scored row, when asked for
};

struct RoundDecision {
  std::vector<SequenceDecision> sequences;  // in the plan's order
};

// Rows that the target computes: of a sequence, and of all sequences of a round together.
int32_t num_rows_of(const SequencePlan& plan);
int32_t num_rows_of(std::span<const SequencePlan> plans);

// Whether the plan's bonus draft token is what the sequence goes on with, and not something drawn.
bool bonus_draft_accepted(const SequencePlan& plan, const SequenceDecision& decision);

// A hash of (sequence, accepted, token, failed) over the round, for the agreement check.
uint64_t digest(uint64_t round, const RoundDecision& decision);

// ---- coordinator <-> draft
// ------------------------------------------------------------------------------------

// "Your sequence now has these tokens; propose draft_len more." num_tokens_before lets the draft
// notice a gap. A second one for the same round, mostly without tokens, tells that the round has
// begun.
struct DraftCommit {
  uint64_t sequence_id = 0;
  uint32_t round = 0;             // the sampling round the block will be verified in
  int32_t num_tokens_before = 0;  // length before the new tokens
  ShortList<int32_t, 16> tokens;  // committed since the last message
  int32_t draft_len = 0;          // 0 = just keep up
  // Tokens of the block for `round` that are being verified now (0: a plain step): the draft works
  // ahead to round + 1. -1: the round has not begun, the block for it is urgent.
  int32_t in_flight = -1;
};

struct DraftRequest {
  uint64_t serial = 0;  // DraftClient's
  std::vector<uint64_t> closes;
  std::vector<SequenceStart> opens;
  std::vector<DraftCommit> commits;
  bool is_empty() const { return closes.empty() && opens.empty() && commits.empty(); }
};

// Tokens for sampling round `round`, behind a text of base_len tokens. Without a guess that is the
// committed text. With one it is a text that may come: what is committed, some of the draft tokens
// in flight, and `guess` as its last token; base_len says how many of them.
struct DraftBlock {
  uint64_t sequence_id = 0;
  uint32_t round = 0;
  int32_t base_len = 0;
  std::vector<DraftToken> tokens;  // may be empty: the draft has nothing to offer
  int32_t guess = -1;              // -1 = nothing assumed
  int32_t first = 0;  // index of tokens[0]: 0 begins the block, else it goes on where it ended
};

struct DraftReply {
  uint64_t serial = 0;        // of the last request it took
  uint64_t step_time_us = 0;  // time of the draft's work, for the cost ratio
  uint32_t num_steps = 0;     // forward passes in it
  std::vector<DraftBlock> blocks;
  uint32_t num_rows = 0;  // of those passes together
  uint64_t idle_us = 0;   // time without work since the last reply
};

}  // namespace outrider
