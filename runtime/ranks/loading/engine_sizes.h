// How long texts may get, how many rows a step has and how much KV memory there is. Every rank
// computes the same sizes from the same options.
#pragma once

#include <cstdint>

#include "models/forward/model.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// Sizes every rank agrees on.
struct EngineSizes {
  int32_t max_model_len = 0;
  int32_t max_rows = 0;             // of a step
  int32_t blocks_per_sequence = 0;  // of the longest text with its longest draft
  int32_t num_blocks = 0;           // of the KV memory of a target rank on a CPU

  // Throws Error: kv_cache_memory_bytes has room for so many blocks, fewer than a sequence takes.
  void expect_one_sequence(int64_t allowed_blocks, int64_t kv_bytes, int32_t block_size) const;
};
EngineSizes engine_sizes(const RunConfig& config,
                         const ModelConfig& target,
                         const RankLayout& layout);

// Of a target rank; on a GPU without KV.
ModelOptions target_options(const RunConfig& config,
                            const EngineSizes& sizes,
                            const ModelConfig& target);
// With room for what it prepares while the target verifies: so many branches of texts at once
// (runtime/ranks/draft/branch_chooser.h).
inline constexpr int32_t kMaxDraftBranches = 128;
ModelOptions draft_options(const RunConfig& config,
                           const EngineSizes& sizes,
                           const ModelConfig& draft);

}  // namespace outrider
