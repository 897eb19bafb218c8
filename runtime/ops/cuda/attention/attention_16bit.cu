// The instances of attention_16bit.h: one for each 16-bit type and usual head_dim.
#include "runtime/ops/cuda/attention/attention_16bit.h"

namespace outrider::gpu {
namespace {

template <typename Half, int kHeadDim>
OUTRIDER_KERNEL(SplitAttention<Half, kHeadDim>::kThreads, SplitAttention<Half, kHeadDim>::kBlocks)
void attend(AttentionArgs args) {
  const auto index = static_cast<int32_t>(block_id().z);
  const bool is_there = index < args.step.counts->num_attention_items;
  ItemHead work;
  SplitLoop splits;
  if (is_there) {
    work = make_item_head(args, index, static_cast<int32_t>(block_id().y));
    splits = splits_of_block(args, work);
  }
  SplitAttention<Half, kHeadDim> attention(args, work);
  if (splits.begin < splits.end) attention.begin(splits.begin);
  wait_for_predecessor();
  let_successor_begin();
  if (!is_there) return;
  for (int32_t split = splits.begin; split < splits.end; ++split) {
    if (split > splits.begin) attention.begin(split);
    attention.run(split);
  }
}

template <typename Half, int kHeadDim>
bool run(Stream& stream, const AttentionArgs& args) {
  using Attention = SplitAttention<Half, kHeadDim>;
  launch(stream,
         attend<Half, kHeadDim>,
         {.grid = attention_grid(args),
          .threads = Attention::kThreads,
          .shared_bytes = Attention::kSharedBytes,
          .overlaps = true},
         args);
  return true;
}

template <typename Half>
bool run_for_head_dim(Stream& stream, const AttentionArgs& args) {
  switch (args.kv.head_dim) {
    case 64:
      return run<Half, 64>(stream, args);
    case 80:
      return run<Half, 80>(stream, args);
    case 96:
      return run<Half, 96>(stream, args);
    case 128:
      return run<Half, 128>(stream, args);
    case 256:
      return run<Half, 256>(stream, args);
    default:
      return false;
  }
}

}  // namespace

bool attention_16bit(Stream& stream, const AttentionArgs& args) {
  if (args.kv.type == Type::kBF16) return run_for_head_dim<Bf16>(stream, args);
  if (args.kv.type == Type::kF16) return run_for_head_dim<F16>(stream, args);
  return false;
}

}  // namespace outrider::gpu
