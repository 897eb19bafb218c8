// top-k, top-p, min-p and typical-p on a sharded row, each as an interval of scaled values: a token
// is kept when its value is at least `cut` and at most `ceiling`. Order: top-k, then top-p over the
// mass top-k kept, then min-p, then typical_p over what is left (Hugging Face's order; llama.cpp
// has typical_p before top-p). Tokens that tie with the last kept one are all kept: top-k may keep
// more than k, top-p keeps the highest threshold whose set has mass >= top_p.
// typical_p (Meister et al., "Locally typical sampling", arXiv 2202.00666, section 4) keeps the
// smallest set of tokens with mass >= typical_p whose surprisals lie nearest to the entropy; it may
// cut the likeliest token, hence the ceiling.
// All rows share each collective; which are made depends on the parameters and on reduced results:
// one gather (at most 69 words a row and rank) or, where more tokens are kept than were gathered,
// four SUMs of 256 bins a row and filter. Called by verify() on every target rank, and by
// propose().
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling_params.h"

namespace outrider {

struct TruncationRow {
  int32_t row = 0;  // of the scanner
  const SamplingParams* params = nullptr;
  float max = kMasked;         // the best scaled value over all shards
  float cut = kMasked;         // out
  float ceiling = kNoCeiling;  // out
};

bool filters(const SamplingParams& params, int32_t vocab_size);

// Rows in ascending order.
void truncate(std::span<TruncationRow> rows,
              int32_t vocab_size,
              RowScanner& scanner,
              ShardExchange& exchange);

// k up to here is decided from the shards' best k values in one gather; above it by radix
// selection.
inline constexpr int32_t kMaxGatheredTopK = 64;

}  // namespace outrider
