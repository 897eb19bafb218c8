// Attention without the matrix instruction: f32 keys and values, and 16-bit ones of an unusual
// head_dim or with scores that are bent. The same blocks, splits and folding as attention_16bit.h.
// For the scores a thread is a position, for the values a dim; weights stay f32. Each query
// multiplies what it sees and nothing else.
#include "runtime/ops/cuda/attention/attention_parts.h"
#include "runtime/ops/cuda/families/softcap.h"

namespace outrider::gpu {
namespace {

constexpr int kWarps = 8;
constexpr uint32_t kThreads = kWarps * 32;
constexpr int kPositions = kSplitPositions;
static_assert(kThreads == kPositions);
constexpr int kTogether = 4;  // queries that share a read of keys

struct PlainShared {
  float* queries;  // [kTogether, head_dim]
  float* weights;  // [kTogether, kPositions]
  float* tops;     // [kTogether, kWarps]
  float* sums;     // [kTogether, kWarps]
  int32_t* slots;  // [kPositions]
};
constexpr size_t shared_bytes(int32_t head_dim) {
  return (static_cast<size_t>(head_dim + kPositions + 2 * kWarps) * kTogether + kPositions) * 4;
}
OUTRIDER_DEVICE PlainShared share_out(int32_t head_dim) {
  auto* const queries = shared_memory<float>();
  float* const weights = queries + kTogether * head_dim;
  float* const tops = weights + kTogether * kPositions;
  float* const sums = tops + kTogether * kWarps;
  return {queries, weights, tops, sums, reinterpret_cast<int32_t*>(sums + kTogether * kWarps)};
}

template <Type kType>
OUTRIDER_DEVICE float element(const void* data, size_t at) {
  if constexpr (kType == Type::kF32) return static_cast<const float*>(data)[at];
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return kType == Type::kBF16 ? ops::bf16_to_float(bits) : ops::f16_to_float(bits);
}

template <Type kType>
OUTRIDER_DEVICE void load_queries(const AttentionArgs& args,
                                  const ItemHead& work,
                                  int32_t first,
                                  float* to) {
  const int32_t head_dim = args.kv.head_dim;
  for (auto i = static_cast<int32_t>(thread_id()); i < kTogether * head_dim;
       i += static_cast<int32_t>(kThreads)) {
    const Query query = query_of(args, work, first + i / head_dim);
    const size_t at = query_index(args, query) * static_cast<size_t>(head_dim) +
                      static_cast<size_t>(i % head_dim);
    to[i] = query.end == 0 ? 0.0f : element<kType>(args.queries, at);
  }
}

// Soft cap and ALiBi.
OUTRIDER_DEVICE float bend(const AttentionArgs& args, int32_t head, int32_t position, float score) {
  if (args.softcap != 0.0f) score = softcap(score, args.softcap);
  if (args.slopes == nullptr) return score;
  return fused_multiply_add(args.slopes[head], static_cast<float>(position), score);
}

// What joins the softmax of a row's first split beside its positions.
OUTRIDER_DEVICE float sink_score(const AttentionArgs& args, const Query& query, int32_t split) {
  const bool is_there = args.sinks != nullptr && query.end != 0 && split == query.first_split();
  return is_there ? args.sinks[query.head] : kNoScore;
}

// Weights of kTogether queries from `first`; their maxima and sums by warps.
template <Type kType, bool kBent>
OUTRIDER_DEVICE void score(const AttentionArgs& args,
                           const ItemHead& work,
                           const SplitRange& range,
                           int32_t first,
                           const PlainShared& shared) {
  const int32_t head_dim = args.kv.head_dim;
  const auto at = static_cast<int32_t>(thread_id());
  const int32_t slot = shared.slots[at];
  float scores[kTogether] = {};
  if (slot >= 0) {
    const size_t key = static_cast<size_t>(slot) * static_cast<size_t>(head_dim);
    for (int32_t dim = 0; dim < head_dim; ++dim) {
      const float of_key = element<kType>(args.kv.keys, key + static_cast<size_t>(dim));
      OUTRIDER_UNROLL
      for (int q = 0; q < kTogether; ++q) {
        scores[q] = fused_multiply_add(shared.queries[q * head_dim + dim], of_key, scores[q]);
      }
    }
  }
  OUTRIDER_UNROLL
  for (int q = 0; q < kTogether; ++q) {
    const Query query = query_of(args, work, first + q);
    const bool sees = query.sees(range.first + at);
    scores[q] = sees ? exact_mul(scores[q], args.scale) : kNoScore;
    if (kBent && sees) scores[q] = bend(args, query.head, range.first + at, scores[q]);
    float top = scores[q];
    if (kBent) top = larger(top, sink_score(args, query, range.split));
    for (uint32_t mask = 16; mask > 0; mask /= 2) top = larger(top, shuffle_xor(top, mask));
    if (lane_id() == 0) shared.tops[q * kWarps + static_cast<int32_t>(warp_id())] = top;
  }
  sync_block();
  OUTRIDER_UNROLL
  for (int q = 0; q < kTogether; ++q) {
    float top = shared.tops[q * kWarps];
    for (int warp = 1; warp < kWarps; ++warp) top = larger(top, shared.tops[q * kWarps + warp]);
    const float weight = scores[q] == kNoScore ? 0.0f : exponential(exact_add(scores[q], -top));
    shared.weights[q * kPositions + at] = weight;
    float sum = weight;
    for (uint32_t mask = 16; mask > 0; mask /= 2) sum = exact_add(sum, shuffle_xor(sum, mask));
    if (kBent && warp_id() == 0) {
      const float sink = sink_score(args, query_of(args, work, first + q), range.split);
      if (sink != kNoScore) sum = exact_add(sum, exponential(exact_add(sink, -top)));
    }
    if (lane_id() == 0) shared.sums[q * kWarps + static_cast<int32_t>(warp_id())] = sum;
  }
}

template <Type kType>
OUTRIDER_DEVICE float weigh(const AttentionArgs& args,
                            const Query& query,
                            const SplitRange& range,
                            int32_t dim,
                            const float* weights,
                            const int32_t* slots) {
  const int32_t begin = query.begin > range.first ? query.begin - range.first : 0;
  const int32_t end = query.end - range.first < kPositions ? query.end - range.first : kPositions;
  float sum = 0.0f;
  for (int32_t i = begin; i < end; ++i) {
    const size_t at = static_cast<size_t>(slots[i]) * static_cast<size_t>(args.kv.head_dim) +
                      static_cast<size_t>(dim);
    sum = fused_multiply_add(weights[i], element<kType>(args.kv.values, at), sum);
  }
  return sum;
}

template <Type kType, bool kBent>
OUTRIDER_DEVICE void run_split(const AttentionArgs& args,
                               const ItemHead& work,
                               int32_t split,
                               const PlainShared& shared) {
  const SplitRange range = split_range(work, split);
  const int32_t head_dim = args.kv.head_dim;
  const auto thread = static_cast<int32_t>(thread_id());
  sync_block();
  shared.slots[thread] = slot_of(args, work, range, thread);
  for (int32_t first = 0; first < work.num_queries; first += kTogether) {
    load_queries<kType>(args, work, first, shared.queries);
    sync_block();
    score<kType, kBent>(args, work, range, first, shared);
    sync_block();
    for (int32_t i = thread; i < kTogether * head_dim; i += static_cast<int32_t>(kThreads)) {
      const int32_t q = i / head_dim;
      const int32_t dim = i % head_dim;
      SoftmaxState part = {shared.tops[q * kWarps], shared.sums[q * kWarps]};
      for (int warp = 1; warp < kWarps; ++warp) {
        part.top = larger(part.top, shared.tops[q * kWarps + warp]);
        part.sum = exact_add(part.sum, shared.sums[q * kWarps + warp]);
      }
      const Destination to =
          make_destination(args, query_of(args, work, first + q), split, part, dim == 0);
      if (to.query.end == 0) continue;
      to.give(
          args,
          dim,
          weigh<kType>(args, to.query, range, dim, shared.weights + q * kPositions, shared.slots));
      if (to.is_last && dim + 1 == head_dim) store_padding(args, to.query);
    }
    sync_block();
  }
}

template <Type kType, bool kBent>
OUTRIDER_KERNEL(kThreads, 2)
void attend_plainly(AttentionArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto index = static_cast<int32_t>(block_id().z);
  if (index >= args.step.counts->num_attention_items) return;
  const ItemHead work = make_item_head(args, index, static_cast<int32_t>(block_id().y));
  const PlainShared shared = share_out(args.kv.head_dim);
  const SplitLoop splits = splits_of_block(args, work);
  for (int32_t split = splits.begin; split < splits.end; ++split) {
    run_split<kType, kBent>(args, work, split, shared);
  }
}

template <bool kBent>
void launch_for_type(Stream& stream, const LaunchShape& shape, const AttentionArgs& args) {
  if (args.kv.type == Type::kF32) {
    launch(stream, attend_plainly<Type::kF32, kBent>, shape, args);
  } else if (args.kv.type == Type::kBF16) {
    launch(stream, attend_plainly<Type::kBF16, kBent>, shape, args);
  } else {
    launch(stream, attend_plainly<Type::kF16, kBent>, shape, args);
  }
}

}  // namespace

void attention_plain(Stream& stream, const AttentionArgs& args) {
  const LaunchShape shape = {.grid = attention_grid(args),
                             .threads = kThreads,
                             .shared_bytes = shared_bytes(args.kv.head_dim),
                             .overlaps = true};
  if (bends_scores(args)) {
    launch_for_type<true>(stream, shape, args);
  } else {
    launch_for_type<false>(stream, shape, args);
  }
}

}  // namespace outrider::gpu
