// A factor on logits, and their soft cap. A block for a piece of a row.
#include "runtime/ops/cuda/families/softcap.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int32_t kPiece = 4096;  // of a row

OUTRIDER_KERNEL(kThreads) void bend_logit_rows(BendLogitsArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= args.step.counts->num_logit_rows) return;
  const int32_t begin = static_cast<int32_t>(block_id().y) * kPiece;
  const int32_t end = args.n - begin < kPiece ? args.n : begin + kPiece;
  float* const logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.n);
  for (int32_t i = begin + static_cast<int32_t>(thread_id()); i < end;
       i += static_cast<int32_t>(kThreads)) {
    const float value = exact_mul(logits[i], args.factor);
    logits[i] = args.cap == 0.0f ? value : softcap(value, args.cap);
  }
}

}  // namespace

void bend_logits(Stream& stream, const BendLogitsArgs& args) {
  const int32_t pieces = whole_tiles(args.n, kPiece);
  launch(stream, bend_logit_rows, over_rows(args.max_rows, pieces, kThreads), args);
}

}  // namespace outrider::gpu
