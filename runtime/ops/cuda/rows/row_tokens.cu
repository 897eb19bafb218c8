// What the best keys of rows say, as the tokens of the step that follows.
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/rows/row_chunk.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 32;

OUTRIDER_KERNEL(kThreads) void take_tokens_kernel(TakeTokensArgs args) {
  const auto i = static_cast<int32_t>(block_id().x * kThreads + thread_id());
  if (i >= args.count) return;
  const bool is_bad = args.words[2 * i + 1] != 0;
  args.tokens[i] = is_bad ? 0 : key_token(args.words[2 * i]);
}

}  // namespace

void take_tokens(Stream& stream, const TakeTokensArgs& args) {
  const auto count = static_cast<uint32_t>(args.count);
  launch(stream,
         take_tokens_kernel,
         {.grid = {(count + kThreads - 1) / kThreads}, .threads = kThreads},
         args);
}

}  // namespace outrider::gpu
