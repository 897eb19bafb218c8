// What turns of latent attention's queries, and its keys: rotated, normed, and put where attention
// reads them. A warp per row and query head, and one for the row's key.
#include "runtime/ops/cuda/attention/head_sums.h"
#include "runtime/ops/cuda/attention/rotate.h"
#include "runtime/ops/cuda/numbers.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/pages.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kWarps = 8;

OUTRIDER_KERNEL(kWarps * 32) void write_latents(LatentWriteArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const auto row = static_cast<int32_t>(block_id().x);
  const auto head = static_cast<int32_t>(block_id().y * kWarps + warp_id());
  const int32_t n_heads = args.to.n_heads;
  if (row >= args.step.counts->num_rows || head > n_heads) return;
  const KvView& kv = args.to.kv;
  const bool is_key = head == n_heads;
  const auto num_turned = static_cast<uint32_t>(args.to.rotary.rotary_dim);
  const uint32_t n = is_key ? static_cast<uint32_t>(kv.head_dim) : num_turned;
  const float* x = args.keys + static_cast<size_t>(row) * static_cast<size_t>(kv.head_dim);
  if (!is_key) {
    const size_t query =
        static_cast<size_t>(row) * static_cast<size_t>(n_heads) + static_cast<size_t>(head);
    x = args.queries + (query + 1) * static_cast<size_t>(args.query_dim) - num_turned;
  }
  float factor = 1.0f;
  if (is_key) {
    const float squares = sum_of_squares(x + num_turned, n - num_turned);
    const float mean = divide(squares, static_cast<float>(n - num_turned));
    factor = divide(1.0f, square_root(exact_add(mean, args.eps)));
  }
  const auto position = static_cast<size_t>(args.step.positions[row]);
  const Rotation rotation(args.to.rotary, args.interleaved, position);
  const HeadPlace place = place_of_head(args.to, args.step, row, head);
  for (uint32_t i = lane_id(); i < n; i += 32) {
    const bool turns = i < num_turned;
    const float value = turns ? rotation.turned(i, x[i], x[rotation.other(i)])
                              : exact_mul(exact_mul(x[i], factor), args.k_norm[i - num_turned]);
    store_float(place.data, kv.type, place.first + i, value);
  }
}

}  // namespace

void latent_write(Stream& stream, const LatentWriteArgs& args) {
  const int32_t blocks = whole_tiles(args.to.n_heads + 1, kWarps);
  launch(stream, write_latents, over_rows(args.max_rows, blocks, kWarps * 32), args);
}

}  // namespace outrider::gpu
