// Ops on heads and of the families that differ from llama: layer norm, norms over all heads, rotary
// positions, factors, learned positions, activations. Written in plain C++, compiled once: the same
// bits on every instruction set but for what the kernels' table gives, which has them too. Sums run
// over 16 lanes folded by one tree. Each result depends on its own row only.
#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

// Below this many elements one thread is faster than a hand-over.
constexpr int64_t kInlineElements = 1 << 15;
constexpr int64_t kInlineActivations = 1 << 13;
constexpr int64_t kLanes = 16;
constexpr int64_t kPieceElements = 512;  // that go through the exponential at a time

float folded(const float (&lanes)[kLanes]) {
  float all[kLanes];
  std::copy_n(lanes, kLanes, all);
  for (int64_t width = kLanes / 2; width >= 1; width /= 2) {
    for (int64_t i = 0; i < width; ++i) all[i] += all[i + width];
  }
  return all[0];
}

// The sum of term(x[i]) in lanes i % 16.
template <typename Term>
float lane_sum(const float* x, int64_t n, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(x[i + lane]);
  }
  for (int64_t lane = 0; i + lane < n; ++lane) lanes[lane] += term(x[i + lane]);
  return folded(lanes);
}

void layer_norm_one(float* out, const float* x, const LayerNorm& norm, int64_t n) {
  const auto count = static_cast<float>(n);
  const float mean = lane_sum(x, n, [](float value) { return value; }) / count;
  const float squares =
      lane_sum(x, n, [mean](float value) { return (value - mean) * (value - mean); });
  const float factor = 1.0f / std::sqrt(squares / count + norm.eps);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - mean) * factor * norm.weight[i];
  if (norm.bias == nullptr) return;
  for (int64_t i = 0; i < n; ++i) out[i] += norm.bias[i];
}

// body(head's numbers, row, head) for every head of every row.
template <typename Body>
void for_heads(Context& ctx, const HeadRows& x, const Body& body) {
  const bool small = x.rows * x.n_heads * x.head_dim < kInlineElements;
  ctx.threads().for_range(x.rows, small, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < x.n_heads; ++h) {
        body(x.data + r * x.stride + h * x.head_dim, r, h);
      }
    }
  });
}

template <typename Body>
void for_elements(Context& ctx, int64_t count, int64_t inline_count, const Body& body) {
  ctx.threads().for_range(count, count < inline_count, body);
}

// finish(i, exp(exponent(i))) for every i of [begin, end).
template <typename Exponent, typename Finish>
void with_exponentials(const cpu::KernelTable& table,
                       int64_t begin,
                       int64_t end,
                       const Exponent& exponent,
                       const Finish& finish) {
  float piece[kPieceElements];
  for (int64_t first = begin; first < end; first += kPieceElements) {
    const int64_t count = std::min(kPieceElements, end - first);
    for (int64_t i = 0; i < count; ++i) piece[i] = exponent(first + i);
    table.exponential(piece, piece, count);
    for (int64_t i = 0; i < count; ++i) finish(first + i, piece[i]);
  }
}

void rotate_neighbours(float* x, const float* angles, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[2 * i];
    const float second = x[2 * i + 1];
    x[2 * i] = first * angles[i] - second * angles[half + i];
    x[2 * i + 1] = second * angles[i] + first * angles[half + i];
  }
}

constexpr float kRootHalf = 0.70710678118654752f;
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;

// The error function by formula 7.1.26 of Abramowitz and Stegun (error below 2e-7): of |x| and
// exp(-x^2).
float erf_of_positive(float x, float exponential) {
  const float t = 1.0f / (1.0f + 0.3275911f * x);
  const float poly =
      t * (0.254829592f +
           t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  return 1.0f - poly * exponential;
}

// What the exponential is taken of for activation `kind` of x.
float exponent_of(float x, ActivationKind kind) {
  if (kind == ActivationKind::kSilu) return -x;
  if (kind == ActivationKind::kGelu) return -0.5f * x * x;
  return -kTwoRootTwoOverPi * (x + 0.044715f * x * x * x);
}

float activated(float x, float exponential, ActivationKind kind) {
  if (kind == ActivationKind::kGelu) {
    const float erf = std::copysign(erf_of_positive(std::fabs(x) * kRootHalf, exponential), x);
    return 0.5f * x * (1.0f + erf);
  }
  return x / (1.0f + exponential);  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u))
}

// out[i] = activation(x[i]); out may be x.
void activate_range(
    const cpu::KernelTable& table, float* out, const float* x, int64_t n, ActivationKind kind) {
  if (kind == ActivationKind::kRelu) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] < 0.0f ? 0.0f : x[i];  // NaN stays
    return;
  }
  const auto exponent = [&](int64_t i) { return exponent_of(x[i], kind); };
  with_exponentials(table, 0, n, exponent, [&](int64_t i, float exponential) {
    out[i] = activated(x[i], exponential, kind);
  });
}

}  // namespace

void layer_norm(
    Context& ctx, float* out, const float* x, const LayerNorm& norm, int64_t rows, int64_t n) {
  ctx.threads().for_range(rows, rows * n < kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) layer_norm_one(out + r * n, x + r * n, norm, n);
  });
}

void rms_norm_heads(Context& ctx, const HeadRows& x, const float* weight, float eps) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  const auto count = static_cast<float>(x.head_dim);
  for_heads(ctx, x, [&](float* head, int64_t, int64_t) {
    const float factor = 1.0f / std::sqrt(table.sum_of_squares(head, x.head_dim) / count + eps);
    table.scale_by_weight(head, head, factor, weight, x.head_dim);
  });
}

void layer_norm_heads(Context& ctx, const HeadRows& x, const float* weight, float eps) {
  for_heads(ctx, x, [&](float* head, int64_t, int64_t h) {
    layer_norm_one(head, head, {weight + h * x.head_dim, nullptr, eps}, x.head_dim);
  });
}

void head_squares(Context& ctx, float* sums, int64_t sums_stride, const HeadRows& x) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  for_heads(ctx, x, [&](const float* head, int64_t r, int64_t h) {
    sums[r * sums_stride + h] = table.sum_of_squares(head, x.head_dim);
  });
}

void rms_norm_all_heads(Context& ctx,
                        const HeadRows& x,
                        const SquaresOfAllHeads& squares,
                        const float* weight,
                        float eps) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  const auto count = static_cast<float>(squares.num_sums * x.head_dim);
  for_heads(ctx, x, [&](float* head, int64_t r, int64_t h) {
    float sum = 0.0f;
    for (int64_t i = 0; i < squares.num_sums; ++i) sum += squares.sums[r * squares.stride + i];
    const float factor = 1.0f / std::sqrt(sum / count + eps);
    table.scale_by_weight(head, head, factor, weight + h * x.head_dim, x.head_dim);
  });
}

void rope(Context& ctx, const HeadRows& x, const RowAngles& angles) {
  OUTRIDER_CHECK(angles.rotary_dim <= x.head_dim && angles.rotary_dim % 2 == 0);
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  for_heads(ctx, x, [&](float* head, int64_t r, int64_t) {
    const float* of_row = angles.data + r * angles.rotary_dim;
    if (angles.interleaved) {
      rotate_neighbours(head, of_row, angles.rotary_dim / 2);
    } else {
      table.rotate(head, of_row, angles.rotary_dim / 2);
    }
  });
}

void copy_heads(Context& ctx,
                const PlacedHeads<float>& to,
                const PlacedHeads<const float>& from,
                const HeadCounts& counts) {
  const int64_t all = counts.rows * counts.n_heads;
  const bool small = all * counts.head_dim < kInlineElements;
  ctx.threads().for_range(all, small, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / counts.n_heads;
      const int64_t h = i % counts.n_heads;
      std::copy_n(from.data + r * from.row_stride + h * from.head_stride,
                  counts.head_dim,
                  to.data + r * to.row_stride + h * to.head_stride);
    }
  });
}

void scale_heads(Context& ctx, const HeadRows& x, const float* factors) {
  for_heads(ctx, x, [&](float* head, int64_t r, int64_t) {
    for (int64_t i = 0; i < x.head_dim; ++i) head[i] *= factors[r];
  });
}

void add_scaled(Context& ctx, float* x, const float* y, float factor, int64_t count) {
  for_elements(ctx, count, kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] += factor * y[i];
  });
}

void scale(Context& ctx, float* x, float factor, int64_t count) {
  for_elements(ctx, count, kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] *= factor;
  });
}

// tanh(u) = 1 - 2 / (1 + exp(2 u)).
void softcap(Context& ctx, float* x, float cap, int64_t count) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  for_elements(ctx, count, kInlineActivations, [&](int64_t begin, int64_t end) {
    const auto exponent = [&](int64_t i) { return 2.0f / cap * x[i]; };
    with_exponentials(table, begin, end, exponent, [&](int64_t i, float exponential) {
      x[i] = cap - 2.0f * cap / (1.0f + exponential);
    });
  });
}

void add_rows(Context& ctx, float* x, const float* table, std::span<const int32_t> ids, int64_t n) {
  const auto rows = static_cast<int64_t>(ids.size());
  ctx.threads().for_range(rows, rows * n < kInlineElements, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = table + int64_t{ids[static_cast<size_t>(r)]} * n;
      for (int64_t i = 0; i < n; ++i) x[r * n + i] += row[i];
    }
  });
}

void multiply_rows(Context& ctx, float* x, const HeadRows& y) {
  for_heads(ctx, y, [&](const float* head, int64_t r, int64_t) {
    for (int64_t i = 0; i < y.head_dim; ++i) x[r * y.head_dim + i] *= head[i];
  });
}

void activate_mul(
    Context& ctx, float* out, const float* gate_up, int64_t rows, int64_t n, ActivationKind kind) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  ctx.threads().for_range(rows, rows * n < kInlineActivations, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gate_up + r * 2 * n;
      if (kind == ActivationKind::kSilu) {
        table.silu_mul(out + r * n, gate, gate + n, n);
        continue;
      }
      activate_range(table, out + r * n, gate, n, kind);
      for (int64_t i = 0; i < n; ++i) out[r * n + i] *= gate[n + i];
    }
  });
}

void clamped_swiglu(
    Context& ctx, float* out, const float* pairs, int64_t count, const ClampedSwiglu& of) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  for_elements(ctx, count, kInlineActivations, [&](int64_t begin, int64_t end) {
    const auto limited = [&](int64_t i) { return std::min(pairs[2 * i], of.limit); };
    const auto exponent = [&](int64_t i) { return -of.alpha * limited(i); };
    with_exponentials(table, begin, end, exponent, [&](int64_t i, float exponential) {
      const float gate = limited(i) / (1.0f + exponential);  // NaN stays
      out[i] = (std::clamp(pairs[2 * i + 1], -of.limit, of.limit) + 1.0f) * gate;
    });
  });
}

void activate(Context& ctx, float* x, int64_t count, ActivationKind kind) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  for_elements(ctx, count, kInlineActivations, [&](int64_t begin, int64_t end) {
    activate_range(table, x + begin, x + begin, end - begin, kind);
  });
}

}  // namespace outrider::ops
