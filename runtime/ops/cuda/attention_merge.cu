// The op: attention over splits, then the parts of rows that have more than one, folded. A warp per
// row and query head.
#include "runtime/base/error.h"
#include "runtime/ops/cuda/attention_parts.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 4;

OUTRIDER_KERNEL(kWarps * 32) void merge_splits(AttentionArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  const auto head = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  if (row >= args.step.counts->num_rows || head >= args.n_heads) return;
  const Query query = make_query(args, row, head);
  const int32_t num_parts = query.last_split() - query.first_split() + 1;
  if (num_parts == 1) return;  // is in the output already
  const int32_t head_dim = args.kv.head_dim;
  const SoftmaxState* const parts = scratch_state(args, query, 0);
  const float* const values = scratch_values(args, query, 0);
  for (auto dim = static_cast<int32_t>(lane_id()); dim < head_dim; dim += 32) {
    SoftmaxState state = parts[0];
    float value = values[dim];
    for (int32_t i = 1; i < num_parts; ++i) {
      const FoldFactors factors = fold_part(state, parts[i]);
      value = fold_value(value, values[static_cast<ptrdiff_t>(i) * head_dim + dim], factors);
    }
    store_activation(args.out, row, head * head_dim + dim, divide(value, state.sum));
  }
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  OUTRIDER_CHECK(args.kv.type != Type::kE4M3 && args.n_heads % args.kv.n_kv_heads == 0);
  if (!attention_16bit(stream, args)) attention_plain(stream, args);
  if (args.max_splits == 1 || attention_scratch(args).one_block_for_all_splits) return;
  const auto head_blocks = (static_cast<uint32_t>(args.n_heads) + kWarps - 1) / kWarps;
  launch(stream,
         merge_splits,
         {.grid = {static_cast<uint32_t>(args.max_rows), head_blocks},
          .threads = kWarps * 32,
          .overlaps = true},
         args);
}

size_t attention_scratch_bytes(const AttentionArgs& args) { return attention_scratch_bound(args); }

}  // namespace outrider::gpu
