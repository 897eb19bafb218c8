// Root mean square norm of the residual stream, with the sum into it that comes before. One block
// per row; the sum over a row is folded in an order that only its length decides.
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / 32;

// The sum of every thread's value, in all threads.
OUTRIDER_DEVICE float sum_over_block(float value, float* of_warps) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value = exact_add(value, shuffle_xor(value, mask));
  if (lane_id() == 0) of_warps[warp_id()] = value;
  sync_block();
  float sum = of_warps[0];
  for (uint32_t warp = 1; warp < kWarps; ++warp) sum = exact_add(sum, of_warps[warp]);
  return sum;
}

OUTRIDER_KERNEL(kThreads) void norm_rows(NormArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto out_row = static_cast<int32_t>(block_id().x);
  const StepCounts& counts = *args.step.counts;
  if (out_row >= (args.selected ? counts.num_logit_rows : counts.num_rows)) return;
  const int32_t row = args.selected ? args.step.logit_rows[out_row] : out_row;
  const auto n = static_cast<uint32_t>(args.out.n);
  const size_t first = static_cast<size_t>(row) * n;
  auto* const values = shared_memory<float>();  // [n]
  float* const of_warps = values + n;           // [kWarps]

  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < n; i += kThreads) {
    float value = args.x[first + i];
    if (args.part != nullptr) {
      value = exact_add(value, args.part[first + i]);
      if (!args.selected) args.x[first + i] = value;
    }
    values[i] = value;
    squares = fused_multiply_add(value, value, squares);
  }
  const float mean = divide(sum_over_block(squares, of_warps), static_cast<float>(n));
  const float factor = divide(1.0f, square_root(exact_add(mean, args.eps)));
  for (uint32_t i = thread_id(); i < n; i += kThreads) {
    const float scaled = exact_mul(values[i], factor);
    store_activation(args.out, out_row, static_cast<int32_t>(i), exact_mul(scaled, args.weight[i]));
  }
}

}  // namespace

void norm(Stream& stream, const NormArgs& args) {
  launch(stream,
         norm_rows,
         {.grid = {static_cast<uint32_t>(args.max_rows)},
          .threads = kThreads,
          .shared_bytes = (static_cast<size_t>(args.out.n) + kWarps) * sizeof(float),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
