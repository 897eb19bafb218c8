// The ops that every model has and that work row by row: embedding, norms, angles of positions,
// copies. Each result depends on its own row only, so how rows are cut over
// threads cannot change a bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

// Below this many elements one thread is faster than a hand-over: read and written, of cos and sin.
constexpr int64_t kInlineElements = 1 << 15;
constexpr size_t kInlineAngles = 1 << 8;

float norm_factor(float sum_of_squares, int64_t n, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

}  // namespace

void embed(Context& ctx, float* out, std::span<const int32_t> ids, const EmbeddingTable& table) {
  const int64_t rows = static_cast<int64_t>(ids.size());
  const int64_t row_bytes = table.n * static_cast<int64_t>(dtype_bytes(table.dtype));
  OUTRIDER_CHECK(table.data != nullptr ||
                 (table.packed != nullptr && table.packed->n_in() == table.n &&
                  table.packed->n_out() == table.n_rows));
  ctx.threads().for_range(rows, rows * table.n < kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = int64_t{ids[static_cast<size_t>(r)]} - table.first_id;
      float* to = out + r * table.n;
      if (row < 0 || row >= table.n_rows) {
        std::fill_n(to, table.n, 0.0f);
        continue;
      }
      if (table.data == nullptr) {
        table.packed->read_row(row, to);
      } else {
        widen(table.data + row * row_bytes, table.n, table.dtype, to);
      }
      // Takes the sign of a zero away, as adding the zeros of the other ranks' shards does.
      for (int64_t i = 0; i < table.n; ++i) to[i] += 0.0f;
    }
  });
}

void rms_norm(Context& ctx,
              float* out,
              const float* x,
              const float* weight,
              int64_t rows,
              int64_t n,
              float eps) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  ctx.threads().for_range(rows, rows * n < kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float factor = norm_factor(table.sum_of_squares(x + r * n, n), n, eps);
      table.scale_by_weight(out + r * n, x + r * n, factor, weight, n);
    }
  });
}

void add_rms_norm(Context& ctx,
                  float* out,
                  float* x,
                  const float* y,
                  const float* weight,
                  int64_t rows,
                  int64_t n,
                  float eps) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  ctx.threads().for_range(rows, rows * n < kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float factor = norm_factor(table.add_sum_of_squares(x + r * n, y + r * n, n), n, eps);
      table.scale_by_weight(out + r * n, x + r * n, factor, weight, n);
    }
  });
}

// fp32 throughout, as the models were trained and are served elsewhere.
void rope_angles(Context& ctx,
                 float* angles,
                 std::span<const int32_t> positions,
                 const Rope& rope) {
  const size_t half = rope.inv_freq.size();
  const int64_t rows = static_cast<int64_t>(positions.size());
  const bool small = positions.size() * half < kInlineAngles;
  ctx.threads().for_range(rows, small, [&](int64_t begin, int64_t end) {
    for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      float* cosines = angles + r * 2 * half;
      for (size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[r]) * rope.inv_freq[i];
        cosines[i] = std::cos(angle) * rope.attention_factor;
        cosines[half + i] = std::sin(angle) * rope.attention_factor;
      }
    }
  });
}

void gather_rows(
    Context& ctx, float* out, const float* x, std::span<const int32_t> row_ids, int64_t n) {
  const int64_t rows = static_cast<int64_t>(row_ids.size());
  const bool in_order = out == x || rows * n < kInlineElements;
  ctx.threads().for_range(rows, in_order, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = row_ids[static_cast<size_t>(r)];
      std::memmove(out + r * n, x + from * n, static_cast<size_t>(n) * sizeof(float));
    }
  });
}

}  // namespace outrider::ops
