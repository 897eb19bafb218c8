// Attention over 16-bit keys and values with the matrix instruction. One block per item, KV head
// and split of kSplitPositions positions (or per item and KV head, going through the splits). The
// item's (row, query head) pairs are the rows of tiles of 16; all eight warps work on a tile
// together: for the scores each takes other positions, for the values other dims. So a score is one
// chain over head_dim, a value sum one over the split's positions, in an order that only absolute
// positions decide. Softmax within a split has its maximum first; weights are rounded to 16 bits,
// and it is the rounded ones that are summed.
//
// Positions that no row of the item sees are neither read nor multiplied; those that some row sees
// and another does not count as exact zeros for the other. So a NaN in a value reaches the rows of
// its own item in its own sequence, which fail anyway, and nobody else.
#pragma once

#include "runtime/ops/cuda/attention/attention_parts.h"

namespace outrider::gpu {

struct Bf16 {
  static OUTRIDER_DEVICE void multiply(float (&d)[4], const Vector4& a, const Vector2& b) {
    multiply_bf16(d, a, b);
  }
  static OUTRIDER_DEVICE uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static OUTRIDER_DEVICE float widen(uint16_t bits) { return ops::bf16_to_float(bits); }
};
struct F16 {
  static OUTRIDER_DEVICE void multiply(float (&d)[4], const Vector4& a, const Vector2& b) {
    multiply_f16(d, a, b);
  }
  static OUTRIDER_DEVICE uint32_t pack(float low, float high) { return pack_f16(low, high); }
  static OUTRIDER_DEVICE float widen(uint16_t bits) { return ops::f16_to_float(bits); }
};

template <typename Half, int kHeadDim>
class SplitAttention {
 public:
  static constexpr int kWarps = 8;
  static constexpr uint32_t kThreads = kWarps * 32;
  // Of a multiprocessor: what shared memory leaves room for.
  static constexpr int kBlocks = kHeadDim <= 64 ? 2 : 1;

 private:
  static_assert(kHeadDim % 16 == 0 && kSplitPositions == 2 * 16 * kWarps);
  static constexpr int kPositions = kSplitPositions;
  // Keys and values side by side where they fit, else values come into the keys' place and a few
  // tiles of queries go through each together.
  static constexpr bool kSideBySide = kHeadDim <= 128;
  static constexpr int kTogether = kSideBySide ? 1 : 3;
  static constexpr int kInnerTiles = kHeadDim / 16;
  static constexpr int kDimTiles = (kHeadDim / 8 + kWarps - 1) / kWarps;  // of a warp
  // Rows of shared memory are 16 bytes longer than they hold: eight in a column meet no bank twice.
  static constexpr int kStride = kHeadDim + 8;
  static constexpr int kWeightStride = kPositions + 8;
  static constexpr int kPage = kPositions * kStride;
  static constexpr int kWeightTile = 16 * kWeightStride;

  uint16_t* keys_;
  uint16_t* values_;
  uint16_t* weights_;  // [kTogether, 16, kWeightStride]
  float* tops_;        // [kTogether, kWarps, 16]
  float* sums_;        // [kTogether, kWarps, 16]
  int32_t* slots_;     // [kPositions]

  const AttentionArgs& args_;
  ItemHead work_;

 public:
  static constexpr size_t kSharedBytes =
      ((kSideBySide ? 2 : 1) * kPage + kTogether * kWeightTile) * sizeof(uint16_t) +
      2 * kTogether * kWarps * 16 * sizeof(float) + kPositions * sizeof(int32_t);
  static_assert(kSharedBytes <= 163 << 10, "what sm_80 has");

  OUTRIDER_DEVICE SplitAttention(const AttentionArgs& args, const ItemHead& work)
      : args_(args), work_(work) {
    keys_ = shared_memory<uint16_t>();
    values_ = kSideBySide ? keys_ + kPage : keys_;
    weights_ = values_ + kPage;
    tops_ = reinterpret_cast<float*>(weights_ + kTogether * kWeightTile);
    sums_ = tops_ + kTogether * kWarps * 16;
    slots_ = reinterpret_cast<int32_t*>(sums_ + kTogether * kWarps * 16);
  }

  // Asks for what earlier steps have stored of a split, which is there before the launch before has
  // ended.
  OUTRIDER_DEVICE void begin(int32_t split) {
    const SplitRange range = split_range(work_, split);
    const auto at = static_cast<int32_t>(thread_id());
    slots_[at] = slot_of(args_, work_, range, at);
    sync_block();
    fetch_both(step_begin(range), end_of_stored(range));
  }

  // The rest of a split that has begun.
  OUTRIDER_DEVICE void run(int32_t split) {
    const SplitRange range = split_range(work_, split);
    const int32_t stored = end_of_stored(range);
    if (stored < step_end(range)) fetch_both(stored, step_end(range));
    const int32_t num_tiles = (work_.num_queries + 15) / 16;
    for (int32_t first = 0; first < num_tiles; first += kTogether) {
      const int32_t end = first + kTogether < num_tiles ? first + kTogether : num_tiles;
      if (!kSideBySide && first > 0) {
        sync_block();
        fetch_both(step_begin(range), step_end(range));
      }
      for (int32_t tile = first; tile < end; ++tile) score(tile, tile - first, range);
      // All warps are done with the keys: the last score() has synchronised after them.
      if (!kSideBySide) fetch(values_, args_.kv.values, step_begin(range), step_end(range));
      wait_copies<0>();
      sync_block();
      for (int32_t tile = first; tile < end; ++tile) weigh(tile, tile - first, range);
    }
  }

 private:
  // Positions of the split in whole steps of the sum over them.
  static OUTRIDER_DEVICE int32_t step_begin(const SplitRange& range) { return range.begin & ~31; }
  static OUTRIDER_DEVICE int32_t step_end(const SplitRange& range) {
    return (range.end + 31) & ~31;
  }

  // Where the positions begin that this step stores, or may store.
  OUTRIDER_DEVICE int32_t end_of_stored(const SplitRange& range) const {
    const int32_t end = work_.item.first_new - range.first;
    if (end < step_begin(range)) return step_begin(range);
    return end < step_end(range) ? end : step_end(range);
  }

  // Keys, and values where they have a place of their own.
  OUTRIDER_DEVICE void fetch_both(int32_t begin, int32_t end) const {
    fetch(keys_, args_.kv.keys, begin, end);
    if (kSideBySide) fetch(values_, args_.kv.values, begin, end);
  }

  // Begins the copy of a split's keys or values; zeros for positions that nobody sees.
  OUTRIDER_DEVICE void fetch(uint16_t* to, const void* pages, int32_t begin, int32_t end) const {
    constexpr int32_t kPieces = kHeadDim / 8;  // of 16 bytes
    const auto* from = static_cast<const uint16_t*>(pages);
    OUTRIDER_ROLLED
    for (int32_t i = begin * kPieces + static_cast<int32_t>(thread_id()); i < end * kPieces;
         i += static_cast<int32_t>(kThreads)) {
      const int32_t position = i / kPieces;
      const int32_t dim = i % kPieces * 8;
      const int32_t slot = slots_[position];
      const ptrdiff_t at = static_cast<ptrdiff_t>(slot < 0 ? 0 : slot) * kHeadDim + dim;
      copy_async_16(to + position * kStride + dim, from + at, slot >= 0);
    }
    end_copy_group();
  }

  // Two neighbouring elements of a query.
  OUTRIDER_DEVICE uint32_t query_pair(const Query& query, int32_t dim) const {
    if (query.end == 0) return 0;
    const auto* from = static_cast<const uint16_t*>(args_.queries) +
                       query_index(args_, query) * static_cast<size_t>(kHeadDim);
    return *reinterpret_cast<const uint32_t*>(from + dim);
  }

  // Where the 16 positions begin that this warp scores in a half of the split.
  static OUTRIDER_DEVICE int32_t scored_from(int half) {
    return half * (kPositions / 2) + static_cast<int32_t>(warp_id()) * 16;
  }

  // Scores of the warp's positions: [half][tile of 8][element of the fragment].
  OUTRIDER_DEVICE void multiply_keys(float (&scores)[2][2][4],
                                     const Vector4 (&queries)[kInnerTiles],
                                     const SplitRange& range) const {
    const auto lane = static_cast<int32_t>(lane_id());
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t from = scored_from(half);
      if (from < step_begin(range) || from >= step_end(range)) continue;
      const uint16_t* row = keys_ + (from + lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
      OUTRIDER_UNROLL
      for (int k = 0; k < kInnerTiles; ++k) {
        const Vector4 key = load_tiles(row + k * 16);
        Half::multiply(scores[half][0], queries[k], {key.x, key.y});
        Half::multiply(scores[half][1], queries[k], {key.z, key.w});
      }
    }
  }

  // The weights of a tile of queries and what is needed to use them, into shared memory.
  OUTRIDER_DEVICE void score(int32_t tile, int32_t place, const SplitRange& range) const {
    const auto lane = static_cast<int32_t>(lane_id());
    const auto warp = static_cast<int32_t>(warp_id());
    const Query query[2] = {query_of(args_, work_, tile * 16 + lane / 4),
                            query_of(args_, work_, tile * 16 + lane / 4 + 8)};
    Vector4 fragments[kInnerTiles];
    OUTRIDER_UNROLL
    for (int k = 0; k < kInnerTiles; ++k) {
      const int32_t dim = k * 16 + lane % 4 * 2;
      fragments[k] = {query_pair(query[0], dim),
                      query_pair(query[1], dim),
                      query_pair(query[0], dim + 8),
                      query_pair(query[1], dim + 8)};
    }
    // The keys are there: of the groups of copies at most the values' is under way.
    wait_copies<kSideBySide ? 1 : 0>();
    sync_block();
    float scores[2][2][4] = {};
    multiply_keys(scores, fragments, range);

    float top[2] = {kNoScore, kNoScore};
    OUTRIDER_UNROLL
    for (int i = 0; i < 16; ++i) {
      float& score = scores[i / 8][i / 4 % 2][i % 4];
      const int32_t at = scored_from(i / 8) + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
      const int which = i % 4 / 2;
      score = query[which].sees(range.first + at) ? exact_mul(score, args_.scale) : kNoScore;
      top[which] = larger(top[which], score);
    }
    float* const tops = tops_ + place * kWarps * 16;
    OUTRIDER_UNROLL
    for (int which = 0; which < 2; ++which) {
      top[which] = larger(top[which], shuffle_xor(top[which], 1));
      top[which] = larger(top[which], shuffle_xor(top[which], 2));
      if (lane % 4 == 0) tops[warp * 16 + lane / 4 + which * 8] = top[which];
    }
    sync_block();
    const float largest[2] = {fold_tops(tops, lane / 4), fold_tops(tops, lane / 4 + 8)};
    store_weights(scores, largest, place, range);
  }

  OUTRIDER_DEVICE void store_weights(const float (&scores)[2][2][4],
                                     const float (&largest)[2],
                                     int32_t place,
                                     const SplitRange& range) const {
    const auto lane = static_cast<int32_t>(lane_id());
    float sum[2] = {0.0f, 0.0f};
    OUTRIDER_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int half = i / 4;
      const int which = i % 2;
      const float* const pair = scores[half][i / 2 % 2] + which * 2;
      const uint32_t packed =
          Half::pack(weight(pair[0], largest[which]), weight(pair[1], largest[which]));
      sum[which] = exact_add(sum[which], Half::widen(static_cast<uint16_t>(packed)));
      sum[which] = exact_add(sum[which], Half::widen(static_cast<uint16_t>(packed >> 16)));
      const int32_t from = scored_from(half);
      if (from < step_begin(range) || from >= step_end(range)) continue;
      uint16_t* const to = weights_ + place * kWeightTile + (lane / 4 + which * 8) * kWeightStride +
                           from + i / 2 % 2 * 8 + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(to) = packed;
    }
    OUTRIDER_UNROLL
    for (int which = 0; which < 2; ++which) {
      sum[which] = exact_add(sum[which], shuffle_xor(sum[which], 1));
      sum[which] = exact_add(sum[which], shuffle_xor(sum[which], 2));
      if (lane % 4 != 0) continue;
      sums_[(place * kWarps + static_cast<int32_t>(warp_id())) * 16 + lane / 4 + which * 8] =
          sum[which];
    }
  }

  // NaN stays NaN.
  static OUTRIDER_DEVICE float weight(float score, float largest) {
    return score == kNoScore ? 0.0f : exponential(exact_add(score, -largest));
  }
  static OUTRIDER_DEVICE float fold_tops(const float* tops, int32_t row) {
    float top = tops[row];
    OUTRIDER_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) top = larger(top, tops[warp * 16 + row]);
    return top;
  }
  static OUTRIDER_DEVICE float fold_sums(const float* sums, int32_t row) {
    float sum = sums[row];
    OUTRIDER_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) sum = exact_add(sum, sums[warp * 16 + row]);
    return sum;
  }

  // The warp's dims of the weighted values of a tile of queries.
  OUTRIDER_DEVICE void weigh(int32_t tile, int32_t place, const SplitRange& range) const {
    const auto lane = static_cast<int32_t>(lane_id());
    const auto warp = static_cast<int32_t>(warp_id());
    const uint16_t* weights =
        weights_ + place * kWeightTile + lane % 16 * kWeightStride + lane / 16 * 8;
    float sums[kDimTiles][4] = {};
    for (int32_t from = step_begin(range); from < step_end(range); from += 32) {
      const Vector4 low = load_tiles(weights + from);
      const Vector4 high = load_tiles(weights + from + 16);
      OUTRIDER_UNROLL
      for (int i = 0; i < kDimTiles; ++i) {
        const int32_t dim_tile = warp + i * kWarps;
        if (dim_tile >= kHeadDim / 8) break;
        const Vector4 value =
            load_tiles_transposed(values_ + (from + lane) * kStride + dim_tile * 8);
        Half::multiply(sums[i], low, {value.x, value.y});
        Half::multiply(sums[i], high, {value.z, value.w});
      }
    }
    OUTRIDER_ROLLED
    for (int which = 0; which < 2; ++which) {
      const int32_t row = lane / 4 + which * 8;
      const SoftmaxState part = {fold_tops(tops_ + place * kWarps * 16, row),
                                 fold_sums(sums_ + place * kWarps * 16, row)};
      const Destination to = make_destination(args_,
                                              query_of(args_, work_, tile * 16 + row),
                                              range.split,
                                              part,
                                              warp == 0 && lane % 4 == 0);
      OUTRIDER_UNROLL
      for (int i = 0; i < kDimTiles; ++i) {
        const int32_t dim_tile = warp + i * kWarps;
        if (dim_tile >= kHeadDim / 8) break;
        to.give_pair(args_,
                     dim_tile * 8 + lane % 4 * 2,
                     which == 0 ? sums[i][0] : sums[i][2],
                     which == 0 ? sums[i][1] : sums[i][3]);
      }
    }
  }
};

}  // namespace outrider::gpu
