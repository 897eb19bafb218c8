// Norms of query and key heads where a model has them, rotary positions, and the writes of queries,
// keys and values. A warp per row and head.
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/pages.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 8;

// 1 / sqrt(mean(x^2) + eps), in all lanes.
OUTRIDER_DEVICE float norm_factor(const float* x, uint32_t n, float eps) {
  float squares = 0.0f;
  for (uint32_t i = lane_id(); i < n; i += 32) squares = fused_multiply_add(x[i], x[i], squares);
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    squares = exact_add(squares, shuffle_xor(squares, mask));
  }
  return divide(1.0f, square_root(exact_add(divide(squares, static_cast<float>(n)), eps)));
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
  const float* weight = nullptr;
  if (!is_value) weight = head < args.to.n_heads ? args.q_norm : args.k_norm;
  const auto n = static_cast<uint32_t>(kv.head_dim);
  const float* const x =
      args.qkv +
      (static_cast<size_t>(row) * static_cast<size_t>(num_heads) + static_cast<size_t>(head)) * n;
  const float factor = weight == nullptr ? 1.0f : norm_factor(x, n, args.eps);
  const auto normed = [&](uint32_t i) {
    return weight == nullptr ? x[i] : exact_mul(exact_mul(x[i], factor), weight[i]);
  };
  const uint32_t half = is_value ? 0 : static_cast<uint32_t>(args.to.rotary.rotary_dim) / 2;
  const float* const cosines =
      args.to.rotary.angles +
      static_cast<size_t>(args.step.positions[row]) * (2 * static_cast<size_t>(half));
  const float* const sines = cosines + half;
  const HeadPlace place = place_of_head(args.to, args.step, row, head);
  for (uint32_t i = lane_id(); i < n; i += 32) {
    float value = normed(i);
    if (i < half) {
      value = exact_add(exact_mul(value, cosines[i]), -exact_mul(normed(i + half), sines[i]));
    } else if (i < 2 * half) {
      const uint32_t pair = i - half;
      value = exact_add(exact_mul(value, cosines[pair]), exact_mul(normed(pair), sines[pair]));
    }
    store_float(place.data, kv.type, place.first + i, value);
  }
}

}  // namespace

void rope_write(Stream& stream, const RopeWriteArgs& args) {
  const auto num_heads = static_cast<uint32_t>(args.to.n_heads + 2 * args.to.kv.n_kv_heads);
  launch(stream,
         rope_write_heads,
         {.grid = {static_cast<uint32_t>(args.max_rows), (num_heads + kWarps - 1) / kWarps},
          .threads = kWarps * 32,
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
