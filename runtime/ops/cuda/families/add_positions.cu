// What follows the embedding: a factor, and learned positions. One block per row.
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;

OUTRIDER_KERNEL(kThreads) void add_position_rows(AddPositionsArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= args.step.counts->num_rows) return;
  const auto n = static_cast<size_t>(args.n);
  float* const x = args.x + static_cast<size_t>(row) * n;
  const float* table = args.table;
  if (table != nullptr) table += static_cast<size_t>(args.step.positions[row]) * n;
  for (size_t i = thread_id(); i < n; i += kThreads) {
    const float value = exact_mul(x[i], args.factor);
    x[i] = table == nullptr ? value : exact_add(value, table[i]);
  }
}

}  // namespace

void add_positions(Stream& stream, const AddPositionsArgs& args) {
  launch(stream, add_position_rows, over_rows(args.max_rows, 1, kThreads), args);
}

}  // namespace outrider::gpu
