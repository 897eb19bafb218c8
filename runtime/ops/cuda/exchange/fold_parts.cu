// Parts of a sum that lie side by side, folded in the tree of runtime/base/numbers/fold_tree.h.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr size_t kMaxBlocks = 1024;

OUTRIDER_KERNEL(kThreads) void fold_columns(FoldPartsArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const size_t step = size_t{num_blocks().x} * kThreads;
  for (size_t i = size_t{block_id().x} * kThreads + thread_id(); i < args.count; i += step) {
    // A leaf enters, and every pair of neighbours of the same size becomes one: at most one sum of
    // each power of two is open, bit k of the number of leaves tells whether that of 2^k is.
    float open[7] = {};
    const auto num_parts = static_cast<uint32_t>(args.num_parts);
    for (uint32_t part = 0; part < num_parts; ++part) {
      float sum = args.parts[size_t{part} * args.count + i];
      bool is_placed = false;
      OUTRIDER_UNROLL
      for (uint32_t level = 0; level < 7; ++level) {
        if (is_placed) continue;
        if ((part >> level & 1) != 0) {
          sum = exact_add(open[level], sum);
        } else {
          open[level] = sum;
          is_placed = true;
        }
      }
    }
    // Leaves without a neighbour move up alone.
    float sum = 0.0f;
    bool has_sum = false;
    OUTRIDER_UNROLL
    for (uint32_t level = 0; level < 7; ++level) {
      if ((num_parts >> level & 1) == 0) continue;
      sum = has_sum ? exact_add(open[level], sum) : open[level];
      has_sum = true;
    }
    args.out[i] = sum;
  }
}

}  // namespace

void fold_parts(Stream& stream, const FoldPartsArgs& args) {
  OUTRIDER_CHECK(args.num_parts > 0 && args.num_parts <= kMaxFoldParts);
  const size_t blocks = std::min((args.count + kThreads - 1) / kThreads, kMaxBlocks);
  launch(stream,
         fold_columns,
         {.grid = {static_cast<uint32_t>(blocks)}, .threads = kThreads, .overlaps = true},
         args);
}

}  // namespace outrider::gpu
