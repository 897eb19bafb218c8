// Products in which each head has a small matrix of its own. A warp per output, for a few rows that
// share a read of the weights; a row's sum is made in an order that its length alone decides.
#include "runtime/base/error.h"
#include "runtime/ops/cuda/attention/head_sums.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 8;
constexpr int32_t kRows = 4;

OUTRIDER_DEVICE void store(
    const HeadProductArgs& args, int32_t row, int32_t head, int32_t out, float sum) {
  const int32_t n_out = args.weights.n_out;
  if (args.out.data != nullptr) return store_activation(args.out, row, head * n_out + out, sum);
  const size_t query =
      static_cast<size_t>(row) * static_cast<size_t>(args.n_heads) + static_cast<size_t>(head);
  const auto within = static_cast<size_t>(args.query_dim - n_out + out);
  const size_t at = query * static_cast<size_t>(args.query_dim) + within;
  store_float(args.queries, args.query_type, at, sum);
}

OUTRIDER_KERNEL(kWarps * 32) void multiply_heads(HeadProductArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const HeadMatrix& weights = args.weights;
  const int32_t first_row = static_cast<int32_t>(block_id().x) * kRows;
  const auto out = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  const auto head = static_cast<int32_t>(block_id().z);
  const int32_t num_rows = args.step.counts->num_rows;
  if (first_row >= num_rows || out >= weights.n_out) return;
  const auto n = static_cast<size_t>(weights.n_in);
  const size_t first =
      (static_cast<size_t>(head) * static_cast<size_t>(weights.n_out) + static_cast<size_t>(out)) *
      n;
  const auto stride = static_cast<size_t>(args.row_stride);
  const float* const in = args.in + static_cast<size_t>(first_row) * stride +
                          static_cast<size_t>(head) * static_cast<size_t>(args.head_stride);
  float sums[kRows] = {};
  for (size_t i = lane_id(); i < n; i += 32) {
    const float weight = load_as_float(weights.data, weights.type, first + i);
    OUTRIDER_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= num_rows) continue;
      sums[r] = fused_multiply_add(weight, in[static_cast<size_t>(r) * stride + i], sums[r]);
    }
  }
  OUTRIDER_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float sum = sum_over_lanes(sums[r]);
    if (lane_id() == 0 && first_row + r < num_rows) store(args, first_row + r, head, out, sum);
  }
}

}  // namespace

void head_product(Stream& stream, const HeadProductArgs& args) {
  OUTRIDER_CHECK(args.weights.type != Type::kE4M3);
  const auto rows = static_cast<uint32_t>(args.max_rows);
  const auto outputs = static_cast<uint32_t>(args.weights.n_out);
  launch(stream,
         multiply_heads,
         {.grid = {(rows + kRows - 1) / kRows,
                   (outputs + kWarps - 1) / kWarps,
                   static_cast<uint32_t>(args.n_heads)},
          .threads = kWarps * 32,
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
