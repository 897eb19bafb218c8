// Sums of squares of this rank's query and key heads, among those of all heads of the model. A warp
// per row and head.
#include "runtime/ops/cuda/attention/head_sums.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 8;

OUTRIDER_KERNEL(kWarps * 32) void square_heads(HeadSquaresArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  const auto head = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  const AllHeads& all = args.all;
  if (row >= args.step.counts->num_rows || head >= all.n_heads + all.n_kv_heads) return;
  const bool is_query = head < all.n_heads;
  const int32_t own = is_query ? head - args.first_head : head - all.n_heads - args.first_kv_head;
  const bool is_here = own >= 0 && own < (is_query ? args.n_heads : args.n_summed_kv_heads);
  float squares = 0.0f;  // another rank's
  if (is_here) {
    const auto before = static_cast<size_t>(is_query ? own : args.n_heads + own);
    const size_t width = static_cast<size_t>(args.n_heads + 2 * args.n_kv_heads);
    const auto head_dim = static_cast<uint32_t>(args.head_dim);
    squares =
        sum_of_squares(args.qkv + (static_cast<size_t>(row) * width + before) * head_dim, head_dim);
  }
  if (lane_id() == 0) {
    const auto of_row =
        static_cast<size_t>(row) * static_cast<size_t>(all.n_heads + all.n_kv_heads);
    args.sums[of_row + static_cast<size_t>(head)] = squares;
  }
}

}  // namespace

void head_squares(Stream& stream, const HeadSquaresArgs& args) {
  const int32_t blocks = whole_tiles(args.all.n_heads + args.all.n_kv_heads, kWarps);
  launch(stream, square_heads, over_rows(args.max_rows, blocks, kWarps * 32), args);
}

}  // namespace outrider::gpu
