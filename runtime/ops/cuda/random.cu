// Random weights by index: the same on every machine, whatever the launch's shape.
#include "runtime/base/numbers/rng.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/float8.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr size_t kMostBlocks = 4096;
constexpr uint32_t kPurpose = 0x57454947;  // "WEIG": no other stream of Philox has it

// Its successor may not begin before it has ended: products read weights before they wait.
OUTRIDER_KERNEL(kThreads) void fill_with_random(RandomArgs args) {
  const size_t stride = static_cast<size_t>(num_blocks().x) * kThreads;
  for (size_t quad = static_cast<size_t>(block_id().x) * kThreads + thread_id();
       quad * 4 < args.count;
       quad += stride) {
    const PhiloxBlock block = philox4x32_10(
        {{static_cast<uint32_t>(quad), kPurpose, static_cast<uint32_t>(quad >> 32), 0}},
        static_cast<uint32_t>(args.seed),
        static_cast<uint32_t>(args.seed >> 32));
    for (size_t i = 0; i < 4 && quad * 4 + i < args.count; ++i) {
      // An odd multiple of 2^-23 in (-1, 1): exact, never zero.
      const auto odd = static_cast<int32_t>(block.lane[i] >> 8 | 1u) - (1 << 23);
      const float unit = exact_mul(static_cast<float>(odd), 0x1p-23f);
      const float value = exact_mul(unit, args.scale);
      if (args.type == Type::kE4M3) {
        static_cast<uint8_t*>(args.out)[quad * 4 + i] = float_to_e4m3(value);
      } else {
        store_float(args.out, args.type, quad * 4 + i, value);
      }
    }
  }
}

}  // namespace

void fill_random(Stream& stream, const RandomArgs& args) {
  if (args.count == 0) return;
  const size_t blocks = (args.count + 4 * kThreads - 1) / (4 * kThreads);
  launch(stream,
         fill_with_random,
         {.grid = {static_cast<uint32_t>(blocks < kMostBlocks ? blocks : kMostBlocks)},
          .threads = kThreads},
         args);
}

}  // namespace outrider::gpu
