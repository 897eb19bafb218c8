// How a matrix product is cut over the threads, which no result depends on, and what becomes of its
// sums: shared by the products of floats and of quantised weights.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/numbers/fold_tree.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops::cpu {

// Rows of which each of several threads may have a part of its own, where the panels alone do not
// divide evenly among the threads.
inline constexpr int64_t kMinPartRows = 48;

// Rows of one panel's sums that are kept at a time, over all slices.
inline constexpr int64_t kMaxTotalRows = 256;
static_assert(kMaxTotalRows / kMaxSlices >= 32);  // the promise of ops.h

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

// What becomes of a product's sums.
struct ProductEnd {
  float* out = nullptr;         // [rows, n_out], unless rows of experts are added up
  int64_t out_stride = 0;       // of its rows
  const float* bias = nullptr;  // [n_out], [experts, n_out] or null
  int64_t num_slices = 1;
};

// Some rows of one panel.
struct PanelRows {
  int64_t panel = 0;      // of the matrix
  int64_t first_out = 0;  // of the expert's
  int64_t first_row = 0;
  int64_t rows = 0;
  const float* bias = nullptr;  // of its outputs, or null
  float* totals = nullptr;      // [slices, rows, kPanel]
  float* out = nullptr;         // where the kernel itself can write the sums
  int64_t out_stride = 0;
};

// Where a panel's sums are the product as they come: whole, with nothing to add. Writing them while
// the next sums are made hides the wait for memory.
inline float* direct_out(const ProductShape& of, const ProductEnd& end, const PanelRows& part) {
  const bool whole = end.num_slices == 1 && of.w->n_in() > 0 && part.first_out + kPanel <= of.n_out;
  if (!whole || part.bias != nullptr || of.sums != nullptr) return nullptr;
  return end.out + part.first_row * end.out_stride + part.first_out;
}

inline void add_to_sums(const ProductShape& of, int64_t num_slices, const PanelRows& part) {
  const ExpertSums& to = *of.sums;
  const int64_t width = std::min(kPanel, of.n_out - part.first_out);
  for (int64_t s = 0; s < num_slices; ++s) {
    for (int64_t r = 0; r < part.rows; ++r) {
      const float* from = part.totals + (s * part.rows + r) * kPanel;
      const int64_t row = to.row_ids[part.first_row + r];
      const float factor = to.factors[part.first_row + r];
      float* sum = to.sums + (row * num_slices + s) * of.n_out + part.first_out;
      for (int64_t o = 0; o < width; ++o) sum[o] += factor * from[o];
    }
  }
}

// Bias goes to the first slice, before the slices are folded.
inline void finish_panel(const ProductShape& of, const ProductEnd& end, const PanelRows& part) {
  const int64_t width = std::min(kPanel, of.n_out - part.first_out);
  for (int64_t r = 0; part.bias != nullptr && r < part.rows; ++r) {
    float* total = part.totals + r * kPanel;
    for (int64_t o = 0; o < width; ++o) total[o] += part.bias[o];
  }
  if (of.sums != nullptr) return add_to_sums(of, end.num_slices, part);
  fold_in_tree(
      part.totals, static_cast<size_t>(end.num_slices), static_cast<size_t>(part.rows * kPanel));
  for (int64_t r = 0; r < part.rows; ++r) {
    std::copy_n(part.totals + r * kPanel,
                width,
                end.out + (part.first_row + r) * end.out_stride + part.first_out);
  }
}

// Calls sum_slices(part) on the threads until all panels of all rows are done; on this thread alone
// below so many multiplications.
template <typename SumSlices>
void multiply_panels(Context& ctx,
                     const ProductShape& of,
                     const ProductEnd& end,
                     int64_t inline_products,
                     const SumSlices& sum_slices) {
  const int64_t num_panels = panels_of(of.n_out);
  const bool small = of.rows * of.w->n_in() * num_panels * kPanel < inline_products;
  for_pieces(ctx, of, small, [&](const Piece& piece) {
    alignas(64) float totals[kMaxTotalRows * kPanel];
    const int64_t most_rows = std::min(kMaxLinearRows, kMaxTotalRows / end.num_slices);
    const int64_t rows = piece.row_end - piece.row_begin;
    const int64_t num_blocks = (rows + most_rows - 1) / most_rows;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t first = rows * block / num_blocks;
      for (int64_t panel = piece.begin; panel < piece.end; ++panel) {
        PanelRows part = {.panel = piece.expert * num_panels + panel,
                          .first_out = panel * kPanel,
                          .first_row = piece.row_begin + first,
                          .rows = rows * (block + 1) / num_blocks - first,
                          .totals = totals,
                          .out_stride = end.out_stride};
        if (end.bias != nullptr) part.bias = end.bias + piece.expert * of.n_out + part.first_out;
        part.out = direct_out(of, end, part);
        sum_slices(part);
        if (part.out == nullptr) finish_panel(of, end, part);
      }
    }
  });
}

}  // namespace outrider::ops::cpu
