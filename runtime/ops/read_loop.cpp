// See read_loop.h.
#include "runtime/ops/read_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/threads/thread_pool.h"

namespace outrider::ops {
namespace {

constexpr size_t kPiece = 1024;  // what the kernel reads at once
constexpr size_t kMostBytes = size_t{2} << 30;

}  // namespace

ReadLoop::ReadLoop(Context& ctx, size_t num_bytes)
    : ctx_(ctx),
      num_bytes_(std::clamp(num_bytes / kPiece, size_t{1}, kMostBytes / kPiece) * kPiece),
      memory_(allocate_bytes(num_bytes_)) {
  // Untouched pages are all one page of zeros, which would be read from a cache.
  std::memset(memory_.get(), 1, num_bytes_);
}

double ReadLoop::run_ms() {
  const size_t num_pieces = num_bytes_ / kPiece;
  std::atomic<uint32_t> mix{0};
  const auto start = std::chrono::steady_clock::now();
  ctx_.threads().run([&](int thread, int num_threads) {
    const size_t begin =
        num_pieces * static_cast<size_t>(thread) / static_cast<size_t>(num_threads);
    const size_t end =
        num_pieces * static_cast<size_t>(thread + 1) / static_cast<size_t>(num_threads);
    mix ^= cpu::kernels_of(ctx_.isa())
               .read_stream(memory_.get() + begin * kPiece,
                            static_cast<int64_t>((end - begin) * kPiece));
  });
  const auto stop = std::chrono::steady_clock::now();
  mix_ ^= mix;  // or the loop would be left out
  return std::chrono::duration<double, std::milli>(stop - start).count();
}

}  // namespace outrider::ops
