// How a step's attention is cut into pieces of work, on the host. Pure and allocation-free. None of
// it changes a bit of the result: sums are cut at absolute positions whatever the pieces are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

// The step's rows, those of a sequence side by side in ascending position.
struct AttentionRows {
  std::span<const int32_t> positions;        // [rows]
  std::span<const int32_t> sequence_of_row;  // [rows]
};

// How many neighbouring rows make one item, at most kMaxItemRows: as many as share a read of keys
// and values before the read stops being what takes the time. group: query heads of a KV head.
int32_t rows_per_attention_item(int32_t group, int32_t head_dim);

struct AttentionPlan {
  int32_t num_items = 0;
  int32_t max_splits = 0;  // of any item
};
// Writes the items of a step; a run of rows of one sequence is cut evenly and, where it can be, so
// that every item but the last fills whole tiles of 16 (row, query head) pairs. Throws Error when
// `items` has no room; one item per row is always room enough.
AttentionPlan plan_attention(const AttentionRows& rows,
                             int32_t group,
                             int32_t rows_per_item,
                             std::span<AttentionItem> items);

// The launch that a step runs in: sizes are rounded up to powers of two, so that few graphs do for
// all steps; items at most one per row.
struct AttentionBucket {
  int32_t max_items = 1;
  int32_t max_splits = 1;
  bool operator==(const AttentionBucket&) const = default;
};
AttentionBucket attention_bucket(const AttentionPlan& plan, int32_t max_rows);

// With many items a block goes through all splits of its item and folds them as it goes, in the
// order in which the merge does and with the same bits; with few, every split has a block of its
// own. So the scratch memory stays small where rows are many.
struct AttentionScratch {
  bool one_block_for_all_splits = false;
  int32_t sum_slots = 0;   // [rows, query heads, slots, head_dim], f32
  int32_t stat_slots = 0;  // [rows, query heads, slots, 2] behind them: maximum, sum of weights
  size_t num_sums = 0;     // floats
  size_t num_stats = 0;    // floats
};
inline constexpr size_t kMaxAttentionScratchBytes = size_t{64} << 20;  // of sums with splits apart
inline constexpr int32_t kManyAttentionBlocks = 512;

constexpr AttentionScratch attention_scratch(const AttentionArgs& args) {
  const size_t queries = static_cast<size_t>(args.max_rows) * static_cast<size_t>(args.n_heads);
  const size_t head_dim = static_cast<size_t>(args.kv.head_dim);
  AttentionScratch scratch;
  const size_t apart = queries * static_cast<size_t>(args.max_splits) * head_dim;
  scratch.one_block_for_all_splits =
      args.max_splits > 1 && (args.max_items * args.kv.n_kv_heads >= kManyAttentionBlocks ||
                              apart * sizeof(float) > kMaxAttentionScratchBytes);
  scratch.sum_slots = scratch.one_block_for_all_splits ? 1 : args.max_splits;
  scratch.stat_slots = scratch.one_block_for_all_splits ? 2 : args.max_splits;
  if (args.max_splits > 1) {
    scratch.num_sums = queries * static_cast<size_t>(scratch.sum_slots) * head_dim;
    scratch.num_stats = queries * static_cast<size_t>(scratch.stat_slots) * 2;
  }
  return scratch;
}

// Bytes that are enough for every launch of up to args' rows, items and splits.
constexpr size_t attention_scratch_bound(const AttentionArgs& args) {
  if (args.max_splits <= 1) return 0;
  const size_t queries = static_cast<size_t>(args.max_rows) * static_cast<size_t>(args.n_heads);
  const size_t head_dim = static_cast<size_t>(args.kv.head_dim);
  const size_t most_apart = kMaxAttentionScratchBytes / (head_dim * sizeof(float));
  const size_t apart = queries * static_cast<size_t>(args.max_splits);
  const size_t slots = apart < most_apart ? apart : most_apart;
  const size_t sums = (slots > queries ? slots : queries) * head_dim;
  const size_t stats = (slots > 2 * queries ? slots : 2 * queries) * 2;
  return (sums + stats) * sizeof(float);
}

}  // namespace outrider::gpu
