// Root mean square norm of the residual stream, with the sum into it that comes before. One block
// per row; the sum over a row is folded in an order that only its length decides.
#include "runtime/ops/cuda/exchange/norm_row.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

OUTRIDER_KERNEL(kNormThreads) void norm_rows(NormArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto out_row = static_cast<int32_t>(block_id().x);
  const StepCounts& counts = *args.step.counts;
  if (out_row >= (args.selected ? counts.num_logit_rows : counts.num_rows)) return;
  const int32_t row = args.selected ? args.step.logit_rows[out_row] : out_row;
  const auto n = static_cast<uint32_t>(args.out.n);
  const size_t first = static_cast<size_t>(row) * n;
  auto* const values = shared_memory<float>();  // [n], then what store_normed_row() wants

  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    float value = args.x[first + i];
    if (args.part != nullptr) {
      value = exact_add(value, args.part[first + i]);
      if (!args.selected) args.x[first + i] = value;
    }
    values[i] = value;
    squares = fused_multiply_add(value, value, squares);
  }
  store_normed_row(args, out_row, values, squares);
}

}  // namespace

void norm(Stream& stream, const NormArgs& args) {
  launch(stream,
         norm_rows,
         {.grid = {static_cast<uint32_t>(args.max_rows)},
          .threads = kNormThreads,
          .shared_bytes = norm_shared_bytes(args.out.n),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
