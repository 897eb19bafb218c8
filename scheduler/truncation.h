// top-k, top-p and min-p on a sharded row, each as a threshold on the scaled value: a token is kept
// when its value is at least `cut`. Order: top-k, then top-p over the mass top-k kept, then min-p.
// Tokens that tie with the last kept one are all kept: top-k may keep more than k, top-p keeps the
// highest threshold whose set has mass >= top_p. All rows share each collective; which are made
// depends on the parameters only. Called by verify() on every target rank, and by propose().
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/request.h"
#include "scheduler/row_view.h"
#include "scheduler/shard_exchange.h"

namespace outrider {

struct TruncationRow {
  RowView view;
  const SamplingParams* params = nullptr;
  float max = kMasked;  // the best scaled value over all shards
  float cut = kMasked;  // out
};

bool filters(const SamplingParams& params, int32_t vocab_size);

void truncate(std::span<TruncationRow> rows, const VocabShard& shard, ShardExchange& exchange);

// k up to here is decided from the shards' best k values in one gather; above it by radix
// selection.
inline constexpr int32_t kMaxGatheredTopK = 64;

}  // namespace outrider
