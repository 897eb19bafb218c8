// Rows of the embedding table by token id. One block per row.
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;

OUTRIDER_KERNEL(kThreads) void embed_rows(EmbedArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  if (row >= args.step.counts->num_rows) return;
  const int32_t id = args.step.tokens[row] - args.first_id;
  const bool is_here = id >= 0 && id < args.n_rows;
  const int32_t table_row = is_here ? id : 0;
  const size_t from = static_cast<size_t>(table_row) * static_cast<size_t>(args.n);
  float* out = args.out + static_cast<size_t>(row) * static_cast<size_t>(args.n);
  for (uint32_t i = thread_id(); i < static_cast<uint32_t>(args.n); i += kThreads) {
    const size_t at =
        args.is_packed
            ? weight_offset(table_row, static_cast<int32_t>(i), args.n, type_bytes(args.type))
            : from + i;
    // Adding zero takes a zero's sign away, so that sums over ranks do not depend on their number.
    out[i] = is_here ? exact_add(load_as_float(args.table, args.type, at), 0.0f) : 0.0f;
  }
}

}  // namespace

void embed(Stream& stream, const EmbedArgs& args) {
  launch(stream, embed_rows, over_rows(args.max_rows, 1, kThreads), args);
}

}  // namespace outrider::gpu
