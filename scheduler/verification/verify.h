// The decision of a round on sharded logits: which draft tokens are accepted and what follows them,
// by the rules of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318), the block
// rule of Sun et al. (arXiv 2403.10444) and the coupled rule of Daliri et al. (arXiv 2408.07978).
// Called by every target rank with its shard; all return the same decisions because they decide
// from the same reduced integers. No vocabulary-sized array crosses a link.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/logits_processor.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling/token_mask.h"

namespace outrider {

// One sampling sequence of the round.
struct VerifyInput {
  uint64_t sequence_id = 0;
  const SamplingParams* params = nullptr;
  std::span<const int32_t>
      tokens;  // all committed tokens; the first draft token stands at tokens.size()
  int32_t num_prompt_tokens = 0;      // of these
  uint32_t round = 0;                 // this sequence's sampling round, part of the noise keys
  std::span<const DraftToken> draft;  // may be empty
  // One draft token more, for the position after them all, or null. The last row judges it where it
  // would draw the bonus token (an empty draft: the plain sample). Standard rule: as any draft
  // token. Block rule: the draft is a block of draft.size() + 1 tokens of which the last has no row
  // behind it, so that P of all is h of all and nothing is drawn when all stand. Whether there is
  // one may depend on anything but the value of this token (and of others that are never used).
  const DraftToken* bonus_draft = nullptr;
  LogitsAddress logits;  // [draft.size() + 1, shard.size()], raw, in the scanner's memory; row i
                         // judges position tokens.size() + i
  const TokenMask* mask = nullptr;  // of params, kept between rounds; null: made anew when needed
  ProcessedRows* processed = nullptr;  // likewise, of this shard
};

// Decisions in the order of the inputs. A bonus draft token that stands is the decision's
// next_token, with num_accepted = draft.size(). Where it falls nothing of it is left to be drawn,
// so bonus_draft_accepted() of round.h can tell. A sequence with NaN or infinity in any of its rows
// (on any shard) comes back failed; a logit above 1e30 in size counts as infinite. So does one
// where masks forbid every token of the row that the next token would be drawn from. The
// collectives made depend only on params, draft lengths and earlier reduced results, so they are
// the same on all ranks; their number does not grow with the number of sequences. Unfiltered: 1 for
// greedy, coupled and plain sampling, 3 for the standard and block rules with drafts; their bytes
// are in docs/round.md; a bonus draft token counts as a draft token, without a row. Filters add a
// gather (narrow ones) or four SUMs each (wide ones) and a draw of their own; log-probabilities 3
// or 4.
std::vector<SequenceDecision> verify(std::span<const VerifyInput> inputs,
                                     const VocabShard& shard,
                                     RowScanner& scanner,
                                     ShardExchange& exchange);

// The same in two parts: before the logits are there, all that needs none of them; then the rest.
class Verification {
 public:
  // All must outlive this. Of the inputs, bonus draft tokens are read when they are taken, logits
  // by run().
  Verification(std::span<const VerifyInput> inputs,
               const VocabShard& shard,
               RowScanner& scanner,
               ShardExchange& exchange);
  ~Verification();
  // Once each, in this order.
  void take_bonus_drafts();
  std::vector<SequenceDecision> run();

 private:
  class Round;
  std::unique_ptr<Round> round_;
};

// Of logits in host memory, as all that follows without a scanner.
std::vector<SequenceDecision> verify(std::span<const VerifyInput> inputs,
                                     const VocabShard& shard,
                                     ShardExchange& exchange);

}  // namespace outrider
