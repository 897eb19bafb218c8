// Whole blocks of keys and values: copied, cleared, poisoned.
#include "runtime/base/error.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;

constexpr size_t block_bytes(const KvView& kv) {
  return static_cast<size_t>(kv.n_kv_heads) * static_cast<size_t>(kv.block_size) *
         static_cast<size_t>(kv.head_dim) * type_bytes(kv.type);
}

struct FillKernelArgs {
  const KvView* kv;  // [layers]
  const int32_t* blocks;
  uint32_t bits;
};

// All bits set is NaN in every type.
OUTRIDER_KERNEL(kThreads) void fill_listed_blocks(FillKernelArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const KvView kv = args.kv[block_id().z];
  const auto block = static_cast<size_t>(args.blocks[block_id().x]);
  const size_t num_vectors = block_bytes(kv) / sizeof(Vector4);
  auto* const to =
      static_cast<Vector4*>(block_id().y == 0 ? kv.keys : kv.values) + block * num_vectors;
  const Vector4 value = {args.bits, args.bits, args.bits, args.bits};
  for (size_t i = thread_id(); i < num_vectors; i += kThreads) to[i] = value;
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
  if (args.num_blocks == 0) return;
  launch(
      stream,
      fill_listed_blocks,
      {.grid = {static_cast<uint32_t>(args.num_blocks), 2, static_cast<uint32_t>(args.num_layers)},
       .threads = kThreads,
       .overlaps = true},
      FillKernelArgs{.kv = args.kv,
                     .blocks = args.blocks,
                     .bits = args.poison ? 0xffffffffu : 0u});
}

}  // namespace outrider::gpu
