// Whole blocks of one layer's keys and values: copied, cleared, poisoned.
#include "runtime/base/error.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;

size_t block_bytes(const KvView& kv) {
  return static_cast<size_t>(kv.n_kv_heads) * static_cast<size_t>(kv.block_size) *
         static_cast<size_t>(kv.head_dim) * type_bytes(kv.type);
}

struct FillKernelArgs {
  void* keys;
  void* values;
  const int32_t* blocks;
  size_t vectors_per_block;
  uint32_t bits;
};

// All bits set is NaN in every type.
OUTRIDER_KERNEL(kThreads) void fill_listed_blocks(FillKernelArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto block = static_cast<size_t>(args.blocks[block_id().x]);
  auto* const to = static_cast<Vector4*>(block_id().y == 0 ? args.keys : args.values) +
                   block * args.vectors_per_block;
  const Vector4 value = {args.bits, args.bits, args.bits, args.bits};
  for (size_t i = thread_id(); i < args.vectors_per_block; i += kThreads) to[i] = value;
}

}  // namespace

void copy_block(Stream& stream, const BlockCopyArgs& args) {
  const size_t num_bytes = block_bytes(args.kv);
  for (void* const pages : {args.kv.keys, args.kv.values}) {
    auto* const bytes = static_cast<unsigned char*>(pages);
    stream.copy(bytes + static_cast<size_t>(args.to) * num_bytes,
                bytes + static_cast<size_t>(args.from) * num_bytes,
                num_bytes);
  }
}

void fill_blocks(Stream& stream, const BlockFillArgs& args) {
  const size_t num_bytes = block_bytes(args.kv);
  OUTRIDER_CHECK(num_bytes % sizeof(Vector4) == 0);
  if (args.num_blocks == 0) return;
  launch(
      stream,
      fill_listed_blocks,
      {.grid = {static_cast<uint32_t>(args.num_blocks), 2}, .threads = kThreads, .overlaps = true},
      FillKernelArgs{.keys = args.kv.keys,
                     .values = args.kv.values,
                     .blocks = args.blocks,
                     .vectors_per_block = num_bytes / sizeof(Vector4),
                     .bits = args.poison ? 0xffffffffu : 0u});
}

}  // namespace outrider::gpu
