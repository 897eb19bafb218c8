// What the attention kernels share: which rows and positions a block has before it, and how sums
// over splits are folded. A split's part of a row is its largest score, the sum of its weights
// exp(score - largest) and the weighted values; parts are folded in ascending order of splits (the
// online softmax of Milakov and Gimelshein 2018), whoever folds them, so a row's bits depend on its
// own positions only.
#pragma once

#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/attention_plan.h"

namespace outrider::gpu {

inline constexpr float kNoScore = -__builtin_huge_valf();  // of a position that a row does not see

OUTRIDER_DEVICE float larger(float a, float b) { return a > b ? a : b; }

// A row and one of its query heads, with the positions it sees: [begin, end).
struct Query {
  int32_t row = 0;
  int32_t head = 0;
  int32_t begin = 0;
  int32_t end = 0;  // 0: there is no such query
  OUTRIDER_DEVICE int32_t first_split() const { return begin / kSplitPositions; }
  OUTRIDER_DEVICE int32_t last_split() const { return (end - 1) / kSplitPositions; }
  OUTRIDER_DEVICE bool sees(int32_t position) const { return position >= begin && position < end; }
};

OUTRIDER_DEVICE Query make_query(const AttentionArgs& args, int32_t row, int32_t head) {
  const int32_t end = args.step.positions[row] + 1;
  const int32_t begin = args.window > 0 && end > args.window ? end - args.window : 0;
  return {row, head, begin, end};
}

OUTRIDER_DEVICE size_t query_index(const AttentionArgs& args, const Query& query) {
  return static_cast<size_t>(query.row) * static_cast<size_t>(args.n_heads) +
         static_cast<size_t>(query.head);
}

// A block's work: the queries of an item that read one KV head. Query j is of the item's row
// j / group, so that a row's heads lie side by side.
struct ItemHead {
  AttentionItem item;
  int32_t kv_head = 0;
  int32_t group = 0;
  int32_t num_queries = 0;
  int32_t begin = 0;  // positions that any of them sees
  int32_t end = 0;
};

OUTRIDER_DEVICE ItemHead make_item_head(const AttentionArgs& args, int32_t index, int32_t kv_head) {
  ItemHead work;
  work.item = args.step.attention_items[index];
  work.kv_head = kv_head;
  work.group = args.n_heads / args.kv.n_kv_heads;
  work.num_queries = work.item.num_rows * work.group;
  work.begin = make_query(args, work.item.first_row, 0).begin;
  work.end = make_query(args, work.item.first_row + work.item.num_rows - 1, 0).end;
  return work;
}

OUTRIDER_DEVICE Query query_of(const AttentionArgs& args, const ItemHead& work, int32_t j) {
  if (j >= work.num_queries) return {};
  return make_query(
      args, work.item.first_row + j / work.group, work.kv_head * work.group + j % work.group);
}

// The part of a split that the item sees, in positions from the split's first: [begin, end).
struct SplitRange {
  int32_t split = 0;
  int32_t first = 0;  // absolute position of the split's first
  int32_t begin = 0;
  int32_t end = 0;
};

OUTRIDER_DEVICE SplitRange split_range(const ItemHead& work, int32_t split) {
  const int32_t first = split * kSplitPositions;
  const int32_t begin = work.begin - first;
  const int32_t end = work.end - first;
  return {split, first, begin > 0 ? begin : 0, end < kSplitPositions ? end : kSplitPositions};
}

// Which slot of the pages, counted over all of them in vectors of head_dim, holds position
// range.first + i; -1 for those the item does not see.
OUTRIDER_DEVICE int32_t slot_of(const AttentionArgs& args,
                                const ItemHead& work,
                                const SplitRange& range,
                                int32_t i) {
  if (i < range.begin || i >= range.end) return -1;
  const int32_t position = range.first + i;
  const int32_t* table =
      args.step.block_tables + static_cast<ptrdiff_t>(work.item.sequence) * args.step.table_stride;
  const int32_t block = table[position / args.kv.block_size];
  return (block * args.kv.n_kv_heads + work.kv_head) * args.kv.block_size +
         position % args.kv.block_size;
}

// Element `dim` of a query's output.
OUTRIDER_DEVICE void store_output(const AttentionArgs& args,
                                  const Query& query,
                                  int32_t dim,
                                  float value) {
  store_activation(args.out, query.row, query.head * args.kv.head_dim + dim, value);
}
// By one thread of the row's last head: the zeros that fill up the row's last tile.
OUTRIDER_DEVICE void store_padding(const AttentionArgs& args, const Query& query) {
  if (args.out.type == Type::kF32 || query.head + 1 < args.n_heads) return;
  for (int32_t pad = args.out.n; pad % kTileInner != 0; ++pad) {
    store_activation(args.out, query.row, pad, 0.0f);
  }
}

// ---- folding
// What a row knows of the splits so far, but for the weighted values.
struct SoftmaxState {
  float top;  // largest score
  float sum;  // of weights
};
struct FoldFactors {
  float of_old;
  float of_new;
};

// Takes a later part into the state; values follow as fold_value says.
OUTRIDER_DEVICE FoldFactors fold_part(SoftmaxState& state, const SoftmaxState& part) {
  const float top = larger(state.top, part.top);
  const FoldFactors factors = {exponential(exact_add(state.top, -top)),
                               exponential(exact_add(part.top, -top))};
  state.sum = fused_multiply_add(state.sum, factors.of_old, exact_mul(part.sum, factors.of_new));
  state.top = top;
  return factors;
}
OUTRIDER_DEVICE float fold_value(float old_value, float new_value, const FoldFactors& factors) {
  return fused_multiply_add(old_value, factors.of_old, exact_mul(new_value, factors.of_new));
}

OUTRIDER_DEVICE float* scratch_values(const AttentionArgs& args, const Query& query, int32_t slot) {
  const auto slots = static_cast<size_t>(args.parts.sum_slots);
  return static_cast<float*>(args.scratch) +
         (query_index(args, query) * slots + static_cast<size_t>(slot)) *
             static_cast<size_t>(args.kv.head_dim);
}
OUTRIDER_DEVICE SoftmaxState* scratch_state(const AttentionArgs& args,
                                            const Query& query,
                                            int32_t slot) {
  float* const states = static_cast<float*>(args.scratch) + args.parts.num_sums;
  return reinterpret_cast<SoftmaxState*>(states) +
         query_index(args, query) * static_cast<size_t>(args.parts.state_slots) +
         static_cast<size_t>(slot);
}

// Where a block's part of a query goes: to the output when nothing follows, else to the scratch
// memory; with one block for all splits, folded with what is there already. All threads of a block
// make it with the same part, between two sync_block(); `keeps_state`: true in one of them.
struct Destination {
  Query query;
  SoftmaxState state = {kNoScore, 0.0f};
  FoldFactors factors = {0.0f, 0.0f};
  float* values = nullptr;
  bool is_first = false;
  bool is_last = false;

  OUTRIDER_DEVICE void give(const AttentionArgs& args, int32_t dim, float value) const {
    if (query.end == 0) return;
    if (!is_first) value = fold_value(values[dim], value, factors);
    if (is_last) {
      store_output(args, query, dim, divide(value, state.sum));
    } else {
      values[dim] = value;
    }
  }
  // Of dims dim and dim + 1, dim even.
  OUTRIDER_DEVICE void give_pair(const AttentionArgs& args,
                                 int32_t dim,
                                 float low,
                                 float high) const {
    if (query.end == 0) return;
    if (!is_first) {
      low = fold_value(values[dim], low, factors);
      high = fold_value(values[dim + 1], high, factors);
    }
    if (is_last) {
      const int32_t k = query.head * args.kv.head_dim + dim;
      store_activation_pair(
          args.out, query.row, k, divide(low, state.sum), divide(high, state.sum));
    } else {
      *reinterpret_cast<Vector2*>(values + dim) = {bits_of(low), bits_of(high)};
    }
  }
};

OUTRIDER_DEVICE Destination make_destination(const AttentionArgs& args,
                                             const Query& query,
                                             int32_t split,
                                             const SoftmaxState& part,
                                             bool keeps_state) {
  Destination to;
  if (query.end == 0 || split < query.first_split() || split > query.last_split()) return to;
  to.query = query;
  to.state = part;
  const bool alone = args.parts.fold == AttentionFold::kOneBlock;
  to.is_first = !alone || split == query.first_split();
  to.is_last = split == query.last_split() && (alone || split == query.first_split());
  const int32_t from_first = split - query.first_split();
  if (!to.is_first) {
    // States alternate between two slots, so that no thread reads what another has just written.
    to.state = *scratch_state(args, query, (from_first + 1) % 2);
    to.factors = fold_part(to.state, part);
  }
  if (!to.is_first || !to.is_last) to.values = scratch_values(args, query, alone ? 0 : from_first);
  if (keeps_state && !to.is_last) {
    *scratch_state(args, query, alone ? from_first % 2 : from_first) = to.state;
  }
  return to;
}

// The parts of a row that has more than one, folded into the output: by a warp.
OUTRIDER_DEVICE void merge_parts(const AttentionArgs& args, const Query& query) {
  constexpr int32_t kDims = 4;  // of a lane at a time
  const int32_t num_parts = query.last_split() - query.first_split() + 1;
  if (num_parts == 1) return;  // is in the output already
  const int32_t head_dim = args.kv.head_dim;
  const SoftmaxState* const parts = scratch_state(args, query, 0);
  const float* const values = scratch_values(args, query, 0);
  const auto lane = static_cast<int32_t>(lane_id());
  for (int32_t first = lane; first < head_dim; first += 32 * kDims) {
    SoftmaxState state = parts[0];
    float sums[kDims];
    OUTRIDER_UNROLL
    for (int i = 0; i < kDims; ++i) {
      const int32_t dim = first + i * 32;
      sums[i] = dim < head_dim ? values[dim] : 0.0f;
    }
    for (int32_t part = 1; part < num_parts; ++part) {
      const float* const from = values + static_cast<ptrdiff_t>(part) * head_dim;
      const FoldFactors factors = fold_part(state, parts[part]);
      OUTRIDER_UNROLL
      for (int i = 0; i < kDims; ++i) {
        const int32_t dim = first + i * 32;
        if (dim < head_dim) sums[i] = fold_value(sums[i], from[dim], factors);
      }
    }
    OUTRIDER_UNROLL
    for (int i = 0; i < kDims; ++i) {
      const int32_t dim = first + i * 32;
      if (dim >= head_dim) continue;
      store_output(args, query, dim, divide(sums[i], state.sum));
    }
  }
  if (lane == 0) store_padding(args, query);
}

// ---- a block
// The splits of this block; the grid is attention_grid().
struct SplitLoop {
  int32_t begin = 0;
  int32_t end = 0;
};
OUTRIDER_DEVICE SplitLoop splits_of_block(const AttentionArgs& args, const ItemHead& work) {
  const int32_t first = work.begin / kSplitPositions;
  const int32_t end = work.item.num_splits;
  if (args.parts.fold == AttentionFold::kOneBlock) return {first, end};
  const auto split = static_cast<int32_t>(block_id().x);
  return {split, split >= first && split < end ? split + 1 : split};
}

inline Grid attention_grid(const AttentionArgs& args) {
  const bool one_block = args.parts.fold == AttentionFold::kOneBlock;
  return {static_cast<uint32_t>(one_block ? 1 : args.max_splits),
          static_cast<uint32_t>(args.kv.n_kv_heads),
          static_cast<uint32_t>(args.max_items)};
}

inline bool bends_scores(const AttentionArgs& args) {
  return args.softcap != 0.0f || args.slopes != nullptr || args.sinks != nullptr;
}

// The kernels; the first returns false when it has no instance for the head_dim.
bool attention_16bit(Stream& stream, const AttentionArgs& args);  // attention_16bit.cu
void attention_plain(Stream& stream, const AttentionArgs& args);  // attention_plain.cu

}  // namespace outrider::gpu
