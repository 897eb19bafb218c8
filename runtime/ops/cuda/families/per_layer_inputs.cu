// Per-layer inputs: what each layer is given of a row's token, out of the token's own vectors and
// its embedding. A warp per row and layer.
#include "runtime/ops/cuda/attention/head_sums.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 8;
constexpr float kRootOfHalf = 0.70710678118654752f;

OUTRIDER_KERNEL(kWarps * 32) void join_vectors(PerLayerInputsArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  const auto layer = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  if (row >= args.step.counts->num_rows || layer >= args.n_layers) return;
  const auto n = static_cast<uint32_t>(args.dim);
  const size_t first =
      (static_cast<size_t>(row) * static_cast<size_t>(args.n_layers) + static_cast<size_t>(layer)) *
      n;
  float* const vector = args.vectors + first;
  const float* const projected = args.projected + first;
  float squares = 0.0f;
  for (uint32_t i = lane_id(); i < n; i += 32) {
    const float value = exact_mul(projected[i], args.factor);
    squares = fused_multiply_add(value, value, squares);
  }
  const float mean = divide(sum_over_lanes(squares), static_cast<float>(n));
  const float inverse = divide(1.0f, square_root(exact_add(mean, args.eps)));
  for (uint32_t i = lane_id(); i < n; i += 32) {
    const float value = exact_mul(projected[i], args.factor);
    const float normed = exact_mul(exact_mul(value, inverse), args.weight[i]);
    vector[i] = exact_mul(exact_add(exact_mul(vector[i], args.scale), normed), kRootOfHalf);
  }
}

}  // namespace

void per_layer_inputs(Stream& stream, const PerLayerInputsArgs& args) {
  const int32_t blocks = whole_tiles(args.n_layers, kWarps);
  launch(stream, join_vectors, over_rows(args.max_rows, blocks, kWarps * 32), args);
}

}  // namespace outrider::gpu
