// See peak_loop.h.
#include "runtime/ops/peak_loop.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/threads/thread_pool.h"

namespace outrider::ops {
namespace {

constexpr int64_t kRounds = 1 << 17;
// A burst is a millisecond or less, which the waking of threads and other programs can spoil.
constexpr int kBursts = 16;
constexpr size_t kApart = 16;  // entries between two threads' own: no cache line in common

}  // namespace

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
