// Who holds what of a tensor-parallel model: pure arithmetic, the same on every rank.
#pragma once

#include <cstdint>

#include "models/model_config.h"

namespace outrider {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Rank r's part of n things cut into parts that differ by at most one.
Range shard_range(int64_t n, int rank, int num_ranks);

// One rank's part of a model. Query heads are cut in whole groups of their KV head where possible;
// KV heads are replicated when there are fewer than ranks.
struct ModelShard {
  int rank = 0;
  int num_ranks = 1;
  Range heads;
  Range kv_heads;
  Range ffn;
  Range vocab;
};
// Throws Error with one sentence when the shape cannot be cut so.
ModelShard shard_model(const ModelConfig& config, int rank, int num_ranks);

}  // namespace outrider
