// How a matrix product is cut over the threads: shared by the products of floats and of quantised
// weights. Results do not depend on it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops::cpu {

// Rows of which each of several threads may have a part of its own, where the panels alone do not
// divide evenly among the threads.
inline constexpr int64_t kMinPartRows = 48;

// The panels [begin, end) of the rows [row_begin, row_end), which are cut into even blocks.
struct Piece {
  int64_t begin;
  int64_t end;
  int64_t row_begin;
  int64_t row_end;
};

// Into how many parts the rows are cut so that panels x parts divide evenly among the threads: the
// fewest that leave no thread idle for more than a thirtieth of the time, else the best there is.
inline int64_t row_parts(int64_t rows, int64_t num_panels, int64_t num_threads) {
  const int64_t most = std::clamp(rows / kMinPartRows, int64_t{1}, num_threads);
  int64_t best = 1;
  double best_use = 0;
  for (int64_t parts = 1; parts <= most && best_use < 29.0 / 30; ++parts) {
    const int64_t units = num_panels * parts;
    const int64_t turns = (units + num_threads - 1) / num_threads;
    const double use = static_cast<double>(units) / static_cast<double>(turns * num_threads);
    if (use > best_use) {
      best = parts;
      best_use = use;
    }
  }
  return best;
}

// Calls run(piece) on the threads until all panels of all rows are done; `small`: on this thread
// alone. Units are (part of the rows, panel), panels fastest; a thread has a contiguous range of
// them.
template <typename Run>
void for_pieces(Context& ctx, int64_t rows, int64_t num_panels, bool small, const Run& run) {
  const int64_t parts = small ? 1 : row_parts(rows, num_panels, ctx.num_threads());
  ctx.threads().for_range(num_panels * parts, small, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end;) {
      const int64_t part = unit / num_panels;
      const int64_t next = std::min(end, (part + 1) * num_panels);
      run(Piece{unit - part * num_panels,
                next - part * num_panels,
                rows * part / parts,
                rows * (part + 1) / parts});
      unit = next;
    }
  });
}

}  // namespace outrider::ops::cpu
