// See engine_sizes.h.
#include "runtime/ranks/loading/engine_sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/forward/transformer.h"
#include "runtime/base/error.h"
#include "runtime/ranks/loading/cpu_dtypes.h"

namespace outrider {
namespace {

constexpr int64_t kMostDefaultKvBytes = int64_t{4} << 30;

}  // namespace

EngineSizes engine_sizes(const RunConfig& config,
                         const ModelConfig& target,
                         const RankLayout& layout) {
  EngineSizes sizes;
  sizes.max_model_len = config.max_model_len > 0 ? config.max_model_len : target.max_positions;
  if (sizes.max_model_len > target.max_positions) {
    throw Error(fmt::format("max_model_len {} is more than the model's {} positions",
                            config.max_model_len,
                            target.max_positions));
  }
  if (target.undecided_window > 0 && sizes.max_model_len > target.undecided_window) {
    throw Error(fmt::format(
        "the model's config.json has sliding_window {0}, which is not supported for {1}: give "
        "--max-model-len {0}, within which it changes nothing",
        target.undecided_window,
        target.model_type));
  }
  const int64_t block_size = config.block_size;
  const auto block_bytes = static_cast<int64_t>(Transformer::kv_bytes_per_block(
      target,
      shard_model(target, 0, layout.num_targets, numerics_from_name(config.numerics)),
      config.block_size,
      kv_type_of(config, target)));
  const int64_t blocks_per_sequence =
      (sizes.max_model_len + config.speculative.longest_draft_len() + block_size) / block_size;
  sizes.blocks_per_sequence = static_cast<int32_t>(blocks_per_sequence);
  // Every running sequence must fit with its draft rows, or draft rows would be cut for no reason.
  sizes.max_rows = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  const int64_t wanted = blocks_per_sequence * config.max_num_seqs;
  if (config.device == "cuda") {  // as many as its GPU has room for
    sizes.num_blocks = static_cast<int32_t>(std::min<int64_t>(wanted, INT32_MAX / 4));
    return sizes;
  }
  const int64_t budget =
      config.kv_cache_memory_bytes > 0 ? config.kv_cache_memory_bytes : kMostDefaultKvBytes;
  const int64_t num_blocks = std::min(wanted, budget / block_bytes);
  sizes.expect_one_sequence(num_blocks, budget, config.block_size);
  sizes.num_blocks = static_cast<int32_t>(num_blocks);
  return sizes;
}

void EngineSizes::expect_one_sequence(int64_t allowed_blocks,
                                      int64_t kv_bytes,
                                      int32_t block_size) const {
  if (allowed_blocks >= blocks_per_sequence) return;
  throw Error(
      fmt::format("kv_cache_memory_bytes {} holds {} tokens, fewer than the {} of max_model_len {} "
                  "with a draft: raise the one or lower the other",
                  kv_bytes,
                  allowed_blocks * block_size,
                  blocks_per_sequence * block_size,
                  max_model_len));
}

ModelOptions target_options(const RunConfig& config,
                            const EngineSizes& sizes,
                            const ModelConfig& target) {
  return {.block_size = config.block_size,
          .num_blocks = sizes.num_blocks,
          .max_rows = sizes.max_rows,
          .max_logit_rows = sizes.max_rows,
          .kv_type = kv_type_of(config, target)};
}

ModelOptions draft_options(const RunConfig& config,
                           const EngineSizes& sizes,
                           const ModelConfig& draft) {
  return {.block_size = config.block_size,
          .num_blocks = sizes.num_blocks,
          .max_rows = sizes.max_rows + kMaxDraftBranches,
          .max_logit_rows = config.max_num_seqs + kMaxDraftBranches,
          .kv_type = kv_type_of(config, draft)};
}

}  // namespace outrider
