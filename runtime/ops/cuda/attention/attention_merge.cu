// The op: attention over splits, then the parts of rows that have more than one, folded. A warp per
// row and query head.
#include "runtime/base/error.h"
#include "runtime/ops/cuda/attention/attention_parts.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 4;

OUTRIDER_KERNEL(kWarps * 32) void merge_splits(AttentionArgs args) {
  const auto row = static_cast<int32_t>(block_id().x);
  const auto head = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  const bool is_there = row < args.step.counts->num_rows && head < args.n_heads;
  Query query;
  if (is_there) query = make_query(args, row, head);
  wait_for_predecessor();
  let_successor_begin();
  if (is_there) merge_parts(args, query);
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& asked) {
  AttentionArgs args = asked;
  args.parts = attention_scratch(asked);
  OUTRIDER_CHECK(args.kv.type != Type::kE4M3 && args.n_heads % args.kv.n_kv_heads == 0);
  if (bends_scores(args) || !attention_16bit(stream, args)) attention_plain(stream, args);
  if (args.parts.fold != AttentionFold::kNextLaunch) return;
  const int32_t blocks = whole_tiles(args.n_heads, kWarps);
  launch(stream, merge_splits, over_rows(args.max_rows, blocks, kWarps * 32), args);
}

}  // namespace outrider::gpu
