// Who holds what of a tensor-parallel model: pure arithmetic, the same on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/checkpoint/model_config.h"

namespace outrider {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Rank r's part of n things cut into parts that differ by at most one.
Range shard_range(int64_t n, int rank, int num_ranks);

// How sums over the inner dimension of row-parallel products are made (docs/architecture.md,
// Numerics). kFast: each rank sums its part in one piece. kStrict: in 8 slices that do not depend
// on the number of ranks, folded in one fixed tree: logits have the same bits on 1, 2, 4 and 8
// ranks.
enum class Numerics : uint8_t { kFast, kStrict };
Numerics numerics_from_name(const std::string& name);  // "fast", "strict"; throws Error

inline constexpr int kStrictSlices = 8;

// One rank's part of a model. Query heads are cut in whole groups of their KV head where possible;
// KV heads are replicated when there are fewer than ranks.
struct ModelShard {
  int rank = 0;
  int num_ranks = 1;
  Numerics numerics = Numerics::kFast;
  Range heads;
  Range kv_heads;
  Range ffn;
  Range expert_ffn;  // of every expert, as ffn is of a dense layer; empty where there are none
  Range shared_ffn;
  Range vocab;
  // Strict: the slices this rank holds, kStrictSlices / num_ranks of each, consecutive, together
  // heads and ffn; some may be empty in a small model. Fast: none.
  std::vector<Range> head_slices;
  std::vector<Range> ffn_slices;
  std::vector<Range> expert_slices;
  std::vector<Range> shared_slices;
};
// Throws Error with one sentence, the same on every rank, when the shape cannot be cut so.
ModelShard shard_model(const ModelConfig& config,
                       int rank,
                       int num_ranks,
                       Numerics numerics = Numerics::kFast);

// The same of one layer, whose heads and MLP may have other sizes.
ModelShard shard_of_layer(const ModelConfig& config, const ModelShard& shard, int32_t layer);

// Where a shard's slices end in a matrix whose inner dimension holds `size` columns for each unit.
std::vector<int64_t> slice_ends(const std::vector<Range>& slices, int64_t size);

}  // namespace outrider
