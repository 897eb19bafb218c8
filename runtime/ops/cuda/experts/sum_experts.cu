// What a row's experts and the shared one give, added up. A block for a piece of a row.
#include "runtime/ops/cuda/experts/piece.h"
#include "runtime/ops/cuda/exponential.h"
#include "runtime/ops/cuda/fold_leaves.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int32_t kPiece = 1024;  // of a row

// Element i of slice s, a row's.
OUTRIDER_DEVICE float sum_of_slice(
    const SumExpertsArgs& args, int32_t row, float gate, int32_t slice, int32_t i) {
  const auto n = static_cast<size_t>(args.n);
  const auto place = [&](int32_t of) {
    return static_cast<size_t>(of * args.num_slices + slice) * n + static_cast<size_t>(i);
  };
  const int32_t first = row * args.rows.per_row;
  float sum = 0.0f;
  for (int32_t pair = first; pair < first + args.rows.per_row; ++pair) {
    sum = exact_add(sum, exact_mul(args.rows.weights[pair], args.products[place(pair)]));
  }
  if (args.shared == nullptr) return sum;
  return exact_add(sum, exact_mul(gate, args.shared[place(row)]));
}

OUTRIDER_KERNEL(kThreads) void sum_experts_of_rows(SumExpertsArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= rows_of_piece(args.rows, args.step)) return;
  const float gate = args.gates == nullptr ? 1.0f : sigmoid(args.gates[row * args.gate_stride]);
  const int32_t begin = static_cast<int32_t>(block_id().y) * kPiece;
  const int32_t end = args.n - begin < kPiece ? args.n : begin + kPiece;
  float* const part =
      args.part + static_cast<size_t>(args.rows.first_row + row) * static_cast<size_t>(args.n);
  for (int32_t i = begin + static_cast<int32_t>(thread_id()); i < end;
       i += static_cast<int32_t>(kThreads)) {
    float slices[kMaxSlices] = {};
    OUTRIDER_UNROLL
    for (int32_t s = 0; s < kMaxSlices; ++s) {
      if (s < args.num_slices) slices[s] = sum_of_slice(args, row, gate, s, i);
    }
    part[i] = fold_leaves(slices, args.num_slices);
  }
}

}  // namespace

void sum_experts(Stream& stream, const SumExpertsArgs& args) {
  const int32_t pieces = whole_tiles(args.n, kPiece);
  launch(stream, sum_experts_of_rows, over_rows(args.rows.max_rows, pieces, kThreads), args);
}

}  // namespace outrider::gpu
