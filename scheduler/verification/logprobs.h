// Log-probabilities of given tokens under raw logits (before bias, penalties, temperature and
// filters), on shards. A function of the row and the token alone: the same bits with any number of
// shards, speculation on or off. Called by verify() and score() on every target rank.
#pragma once

#include <span>
#include <vector>

#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/token_logprobs.h"

namespace outrider {

struct LogprobRow {
  LogitsAddress logits;  // [shard.size()]
  int32_t token = 0;
  int32_t num_top = 0;
};

struct LogprobResult {
  TokenLogprobs logprobs;
  bool bad = false;  // NaN or infinity in the row, on any shard
};

// One MAX, two SUMs and, when any row wants the top tokens, one gather; none for no rows. All ranks
// must pass the same tokens and num_top.
std::vector<LogprobResult> token_logprobs(std::span<const LogprobRow> rows,
                                          const VocabShard& shard,
                                          RowScanner& scanner,
                                          ShardExchange& exchange);

// Log-probabilities of given next tokens under raw logits, for prompt scoring: row i scores
// next_tokens[i]. An input with NaN or infinity in any row, on any shard, comes back empty.
struct ScoreInput {
  LogitsAddress logits;  // [next_tokens.size(), shard.size()]
  std::span<const int32_t> next_tokens;
  int32_t num_top = 0;
};
std::vector<std::vector<TokenLogprobs>> score(std::span<const ScoreInput> inputs,
                                              const VocabShard& shard,
                                              RowScanner& scanner,
                                              ShardExchange& exchange);

}  // namespace outrider
