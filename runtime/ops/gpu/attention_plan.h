// How a step's attention is cut into pieces of work, on the host. Pure and allocation-free. None of
// it changes a bit of the result: sums are cut at absolute positions whatever the pieces are.
#pragma once

#include <bit>
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
// How many rows fit into one tile of 16 (row, query head) pairs; at least one.
int32_t rows_of_attention_tile(int32_t group);

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

// From so many (item, KV head) on it is one block.
inline constexpr int32_t kManyAttentionBlocks = 512;
inline constexpr size_t kMaxAttentionSumBytes = size_t{64} << 20;  // with a block for every split

constexpr AttentionScratch attention_scratch(const AttentionArgs& args) {
  AttentionScratch scratch;
  if (args.max_splits <= 1) return scratch;
  const size_t queries = static_cast<size_t>(args.max_rows) * static_cast<size_t>(args.n_heads);
  const size_t head_dim = static_cast<size_t>(args.kv.head_dim);
  const size_t apart = queries * static_cast<size_t>(args.max_splits) * head_dim;
  if (args.max_items * args.kv.n_kv_heads >= kManyAttentionBlocks ||
      apart * sizeof(float) > kMaxAttentionSumBytes) {
    scratch.fold = AttentionFold::kOneBlock;
  } else {
    scratch.fold = AttentionFold::kNextLaunch;
  }
  const bool one_block = scratch.fold == AttentionFold::kOneBlock;
  scratch.sum_slots = one_block ? 1 : args.max_splits;
  scratch.state_slots = one_block ? 2 : args.max_splits;
  scratch.num_sums = queries * static_cast<size_t>(scratch.sum_slots) * head_dim;
  scratch.num_states = queries * static_cast<size_t>(scratch.state_slots) * 2;
  return scratch;
}

// Bytes that are enough for every launch of up to args' rows, items and splits, these rounded up as
// attention_bucket() does.
constexpr size_t attention_scratch_bound(const AttentionArgs& args) {
  if (args.max_splits <= 1) return 0;
  const size_t queries = static_cast<size_t>(args.max_rows) * static_cast<size_t>(args.n_heads);
  const size_t head_dim = static_cast<size_t>(args.kv.head_dim);
  const size_t most_apart = kMaxAttentionSumBytes / (head_dim * sizeof(float));
  const size_t apart = queries * std::bit_ceil(static_cast<uint32_t>(args.max_splits));
  const size_t slots = apart < most_apart ? apart : most_apart;
  const size_t sums = (slots > queries ? slots : queries) * head_dim;
  const size_t states = (slots > 2 * queries ? slots : 2 * queries) * 2;
  return (sums + states) * sizeof(float);
}

}  // namespace outrider::gpu
