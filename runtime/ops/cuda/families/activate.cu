// The activations of MLPs that products do not end in, operation by operation as the CPU backend
// has them (runtime/ops/cpu/family_ops.cpp). A block for a piece of a row.
#include "runtime/ops/cuda/families/activation.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int32_t kPiece = 1024;  // of a row

OUTRIDER_KERNEL(kThreads) void activate_rows(ActivateArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= args.step.counts->num_rows) return;
  const int32_t n = args.out.n;
  const int32_t begin = static_cast<int32_t>(block_id().y) * kPiece;
  const int32_t end = n - begin < kPiece ? n : begin + kPiece;
  const int32_t width = args.is_gated ? 2 * n : n;
  const float* const x = args.x + static_cast<size_t>(row) * static_cast<size_t>(width);
  const float* factors = args.is_gated ? x + n : nullptr;
  if (args.factors != nullptr) {
    factors = args.factors + static_cast<size_t>(row) * static_cast<size_t>(args.factors_stride);
  }
  for (int32_t i = begin + static_cast<int32_t>(thread_id()); i < end;
       i += static_cast<int32_t>(kThreads)) {
    const float value = activation(x[i], args.kind);
    store_activation(args.out, row, i, factors != nullptr ? exact_mul(value, factors[i]) : value);
  }
}

}  // namespace

void activate(Stream& stream, const ActivateArgs& args) {
  const int32_t pieces = whole_tiles(args.out.n, kPiece);
  launch(stream, activate_rows, over_rows(args.max_rows, pieces, kThreads), args);
}

}  // namespace outrider::gpu
