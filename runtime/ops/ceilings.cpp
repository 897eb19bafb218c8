// See ceilings.h.
#include "runtime/ops/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/threads/thread_pool.h"

namespace outrider::ops {
namespace {

constexpr size_t kPiece = 1024;  // what the kernel reads at once
constexpr size_t kMostBytes = size_t{2} << 30;
constexpr int64_t kRounds = 1 << 17;
// A burst is a millisecond or less, which the waking of threads and other programs can spoil.
constexpr int kBursts = 16;
constexpr size_t kApart = 16;  // entries between two threads' own: no cache line in common

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

double peak_gflops(Context& ctx) {
  const cpu::RoundedProducts& kernels = ctx.activations() == Activations::kBF16
                                            ? cpu::rounded_products_of(ctx)
                                            : cpu::kernels_of(ctx.isa()).rounded;
  std::vector<int64_t> operations(static_cast<size_t>(ctx.num_threads()) * kApart);
  std::vector<float> sinks(operations.size(), 1.0f);
  double best = 0;
  for (int burst = 0; burst < kBursts; ++burst) {
    const auto begin = std::chrono::steady_clock::now();
    ctx.threads().run([&](int thread, int) {
      const auto own = static_cast<size_t>(thread) * kApart;
      operations[own] = kernels.peak(kRounds, &sinks[own]);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto all = std::accumulate(operations.begin(), operations.end(), int64_t{0});
    best = std::max(best, static_cast<double>(all) / seconds / 1e9);
  }
  return best;
}

}  // namespace outrider::ops
