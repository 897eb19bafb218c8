// What became of drafts: a verdict for each decided round, and counts since the start.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/block_source.h"

namespace outrider {

// What a decided round says of its sequence's draft.
struct DraftResult {
  bool judged_backup() const { return source != BlockSource::kNone && source == backup_source; }

  uint64_t sequence_id = 0;
  // A bonus draft that was judged counts as one more.
  int32_t num_drafted = 0;
  int32_t num_accepted = 0;
  // Whether the token that the draft had behind them, without a row or a judgement, came next.
  std::optional<bool> counterfactual;
  bool all_accepted = false;                // all draft tokens of the round
  BlockSource source = BlockSource::kNone;  // of the draft tokens
  // A backup that was proposed: how long a match it had, and where it was not judged, whether its
  // first token came next.
  BlockSource backup_source = BlockSource::kNone;
  int32_t match_len = 0;
  std::optional<bool> backup_counterfactual;
  // When the draft could prepare for the outcome: how much of the next block was there.
  std::optional<int32_t> num_prepared;
};
struct DraftNews {
  std::vector<DraftResult> results;  // of the last decide() or apply()
  std::vector<uint64_t> ended;       // sequences
};

// What the draft's asynchronous drafting came to, since the start.
struct DraftCounters {
  uint64_t num_lookups = 0;           // decided rounds for whose outcomes the draft could prepare
  uint64_t num_hits = 0;              // of these, whose outcome was prepared
  uint64_t num_stale_blocks = 0;      // for a round or text that is over, or without room
  uint64_t num_prepared_tokens = 0;   // kept for outcomes
  uint64_t num_prepared_dropped = 0;  // of these, for outcomes that did not come
};

}  // namespace outrider
