// How a matrix product is cut over the threads: shared by the products of floats and of quantised
// weights. Results do not depend on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops::cpu {

// Rows of which each of several threads may have a part of its own, where the panels alone do not
// divide evenly among the threads.
inline constexpr int64_t kMinPartRows = 48;

// A matrix, or the experts' of one (ops.h), and the rows it is multiplied with.
struct ProductShape {
  const PackedMatrix* w = nullptr;
  int64_t n_out = 0;  // of one expert
  int64_t rows = 0;
  std::span<const ExpertRows> groups = {};  // empty: no experts
  const ExpertSums* sums = nullptr;  // where rows of experts are added up; null: they are not
};

// The panels [begin, end) of the rows [row_begin, row_end), which are cut into even blocks.
struct Piece {
  int64_t begin;
  int64_t end;
  int64_t row_begin;
  int64_t row_end;
  int64_t expert = 0;
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

// Units are (expert, panel), panels fastest; but where experts' rows are added up a panel belongs
// to one thread, which takes the experts in turn.
template <typename Run>
void for_expert_pieces(Context& ctx, const ProductShape& shape, bool small, const Run& run) {
  const int64_t num_panels = panels_of(shape.n_out);
  const auto run_group = [&](const ExpertRows& group, int64_t begin, int64_t end) {
    run(Piece{begin, end, group.begin, group.end, group.expert});
  };
  if (shape.sums != nullptr) {
    ctx.threads().for_range(num_panels, small, [&](int64_t begin, int64_t end) {
      for (const ExpertRows& group : shape.groups) run_group(group, begin, end);
    });
    return;
  }
  const int64_t units = num_panels * std::ssize(shape.groups);
  ctx.threads().for_range(units, small, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end;) {
      const int64_t g = unit / num_panels;
      const int64_t next = std::min(end, (g + 1) * num_panels);
      run_group(shape.groups[static_cast<size_t>(g)], unit - g * num_panels, next - g * num_panels);
      unit = next;
    }
  });
}

// Calls run(piece) on the threads until all panels of all rows are done; `small`: on this thread
// alone. Units are (part of the rows, panel), panels fastest; a thread has a contiguous range of
// them.
template <typename Run>
void for_pieces(Context& ctx, const ProductShape& shape, bool small, const Run& run) {
  if (!shape.groups.empty()) return for_expert_pieces(ctx, shape, small, run);
  const int64_t rows = shape.rows;
  const int64_t num_panels = panels_of(shape.n_out);
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

// Sums of a panel whose first output is first_out, [slices, rows, kRowsPerPanel], for the rows from
// first_row on.
struct PanelTotals {
  const float* totals = nullptr;
  int64_t num_slices = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_out = 0;
};
inline void add_to_sums(const ExpertSums& to, const PanelTotals& panel, int64_t n_out) {
  const int64_t width = std::min(kRowsPerPanel, n_out - panel.first_out);
  for (int64_t s = 0; s < panel.num_slices; ++s) {
    for (int64_t r = 0; r < panel.rows; ++r) {
      const float* from = panel.totals + (s * panel.rows + r) * kRowsPerPanel;
      const int64_t row = to.row_ids[panel.first_row + r];
      const float factor = to.factors[panel.first_row + r];
      float* sum = to.sums + (row * panel.num_slices + s) * n_out + panel.first_out;
      for (int64_t o = 0; o < width; ++o) sum[o] += factor * from[o];
    }
  }
}

}  // namespace outrider::ops::cpu
