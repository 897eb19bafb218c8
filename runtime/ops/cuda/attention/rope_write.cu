// Norms of query and key heads where a model has them, rotary positions, and the writes of queries,
// keys and values. A warp per row and head.
#include "runtime/ops/cuda/attention/head_sums.h"
#include "runtime/ops/cuda/attention/rotate.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/pages.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 8;

// What norms make of a head's numbers.
struct NormOfHead {
  const float* weight = nullptr;
  float mean = 0.0f;
  float factor = 1.0f;
  OUTRIDER_DEVICE float of(const float* x, uint32_t i) const {
    if (weight == nullptr) return x[i];
    return exact_mul(exact_mul(exact_add(x[i], -mean), factor), weight[i]);
  }
};

// x: the head, of queries then keys; in all lanes.
OUTRIDER_DEVICE NormOfHead norm_of_head(const RopeWriteArgs& args,
                                        int32_t row,
                                        int32_t head,
                                        const float* x) {
  const bool is_query = head < args.to.n_heads;
  const bool is_value = head >= args.to.n_heads + args.to.kv.n_kv_heads;
  const int32_t own = is_query ? head : head - args.to.n_heads;
  const HeadNorm kind = is_value ? HeadNorm::kHead : args.norm;
  const auto n = static_cast<uint32_t>(args.to.kv.head_dim);
  NormOfHead norm;
  norm.weight = is_query ? args.q_norm : is_value ? args.v_norm : args.k_norm;
  if (norm.weight == nullptr) return norm;
  if (kind != HeadNorm::kHead) norm.weight += static_cast<size_t>(own) * n;
  auto count = static_cast<float>(n);
  float squares = 0.0f;
  if (kind == HeadNorm::kAllHeads) {
    const auto& all = args.all;
    const float* sums =
        args.squares + static_cast<size_t>(row) * static_cast<size_t>(all.n_heads + all.n_kv_heads);
    if (!is_query) sums += all.n_heads;
    const int32_t num = is_query ? all.n_heads : all.n_kv_heads;
    for (int32_t i = 0; i < num; ++i) squares = exact_add(squares, sums[i]);
    count = static_cast<float>(num * args.to.kv.head_dim);
  } else {
    if (kind == HeadNorm::kOwnHead) norm.mean = divide(sum_of(x, n), count);
    squares = sum_of_squares(x, n, norm.mean);
  }
  norm.factor = divide(1.0f, square_root(exact_add(divide(squares, count), args.eps)));
  return norm;
}

OUTRIDER_KERNEL(kWarps * 32) void rope_write_heads(RopeWriteArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  const auto head = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  const KvView& kv = args.to.kv;
  const int32_t num_heads = args.to.n_heads + 2 * kv.n_kv_heads;
  if (row >= args.step.counts->num_rows || head >= num_heads) return;
  const bool is_value = head >= args.to.n_heads + kv.n_kv_heads;
  const auto n = static_cast<uint32_t>(kv.head_dim);
  const int32_t num_missing = args.k_is_v ? kv.n_kv_heads : 0;
  const int32_t from = is_value ? head - num_missing : head;
  const float* const x =
      args.qkv + (static_cast<size_t>(row) * static_cast<size_t>(num_heads - num_missing) +
                  static_cast<size_t>(from)) *
                     n;
  const NormOfHead norm = norm_of_head(args, row, head, x);
  const auto position = static_cast<size_t>(args.step.positions[row]);
  const bool grows = args.query_factors != nullptr && head < args.to.n_heads;
  const Rotation rotation(args.to.rotary, args.interleaved, position);
  const uint32_t num_turned = is_value ? 0 : static_cast<uint32_t>(args.to.rotary.rotary_dim);
  const HeadPlace place = place_of_head(args.to, args.step, row, head);
  for (uint32_t i = lane_id(); i < n; i += 32) {
    float value = norm.of(x, i);
    if (i < num_turned) value = rotation.turned(i, value, norm.of(x, rotation.other(i)));
    if (grows) value = exact_mul(value, args.query_factors[position]);
    store_float(place.data, kv.type, place.first + i, value);
  }
}

}  // namespace

void rope_write(Stream& stream, const RopeWriteArgs& args) {
  const int32_t blocks = whole_tiles(args.to.n_heads + 2 * args.to.kv.n_kv_heads, kWarps);
  launch(stream, rope_write_heads, over_rows(args.max_rows, blocks, kWarps * 32), args);
}

}  // namespace outrider::gpu
