// The router's logits, from the residual stream itself: its norm is made once more in float32,
// since what the products read is rounded. A warp per expert and row.
#include "runtime/ops/cuda/exchange/norm_row.h"
#include "runtime/ops/cuda/experts/piece.h"

namespace outrider::gpu {
namespace {

constexpr int32_t kWarps = static_cast<int32_t>(kNormWarps);

// values: the row's norm, in shared memory.
OUTRIDER_DEVICE void load_normed_row(const RouteArgs& args, const float* x, float* values) {
  const auto n = static_cast<uint32_t>(args.n);
  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    values[i] = x[i];
    squares = exact_add(squares, exact_mul(values[i], values[i]));
  }
  const float mean = divide(sum_over_block(squares, values + n), static_cast<float>(n));
  const float factor = divide(1.0f, square_root(exact_add(mean, args.eps)));
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    values[i] = exact_mul(exact_mul(values[i], factor), args.norm_weight[i]);
  }
}

OUTRIDER_DEVICE float four_products(const Vector4& a, const Vector4& b, float sum) {
  sum = fused_multiply_add(float_of(a.x), float_of(b.x), sum);
  sum = fused_multiply_add(float_of(a.y), float_of(b.y), sum);
  sum = fused_multiply_add(float_of(a.z), float_of(b.z), sum);
  return fused_multiply_add(float_of(a.w), float_of(b.w), sum);
}

// In all lanes. Each has every 32nd element, four by four where rows are whole such.
OUTRIDER_DEVICE float dot(const float* weights, const float* values, int32_t n) {
  const auto lane = static_cast<int32_t>(lane_id());
  const int32_t fours = n % 4 == 0 ? n / 4 : 0;
  float sum = 0.0f;
  for (int32_t i = lane; i < fours; i += 32) {
    sum = four_products(reinterpret_cast<const Vector4*>(weights)[i],
                        reinterpret_cast<const Vector4*>(values)[i],
                        sum);
  }
  for (int32_t i = 4 * fours + lane; i < n; i += 32) {
    sum = fused_multiply_add(weights[i], values[i], sum);
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) sum = exact_add(sum, shuffle_xor(sum, mask));
  return sum;
}

OUTRIDER_KERNEL(kNormThreads) void router_logits(RouteArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= rows_of_piece(args.to, args.step)) return;
  const auto n = static_cast<size_t>(args.n);
  auto* const values = shared_memory<float>();  // [n], then what sum_over_block() wants
  load_normed_row(args, args.x + static_cast<size_t>(args.to.first_row + row) * n, values);
  sync_block();
  const int32_t e = static_cast<int32_t>(block_id().y) * kWarps + static_cast<int32_t>(warp_id());
  if (e >= args.num_logits) return;
  float logit = dot(args.router + static_cast<size_t>(e) * n, values, args.n);
  if (args.bias != nullptr) logit = exact_add(logit, args.bias[e]);
  if (lane_id() == 0) args.logits[row * args.num_logits + e] = logit;
}

}  // namespace

void make_router_logits(Stream& stream, const RouteArgs& args) {
  launch(stream,
         router_logits,
         {.grid = {static_cast<uint32_t>(args.to.max_rows),
                   static_cast<uint32_t>(whole_tiles(args.num_logits, kWarps))},
          .threads = kNormThreads,
          .shared_bytes = norm_shared_bytes(args.n),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
