// Ops of a mixture of experts beside its products (linear.cpp): who is chosen, and the sums of
// slices. Written in plain C++ and with what the kernels' table gives, the same bits on every
// instruction set. Each row by itself.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/numbers/fold_tree.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

// Below these many elements one thread is faster than a hand-over.
constexpr int64_t kInlineScores = 1 << 13;
constexpr int64_t kInlineElements = 1 << 15;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kWorst =
    -1e30f;  // what is not a number, yet must be taken when nothing else is left

void sigmoid_of(const cpu::KernelTable& table, float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = -x[i];
  table.exponential(x, x, count);
  for (int64_t i = 0; i < count; ++i) x[i] = 1.0f / (1.0f + x[i]);
}

void softmax_of(const cpu::KernelTable& table, float* x, int64_t count) {
  const float largest = *std::max_element(x, x + count);
  for (int64_t i = 0; i < count; ++i) x[i] -= largest;
  table.exponential(x, x, count);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  for (int64_t i = 0; i < count; ++i) x[i] /= sum;
}

// The lowest index of the largest value, which then is kNever.
int32_t take_best(float* values, int32_t count) {
  const auto best = static_cast<int32_t>(std::max_element(values, values + count) - values);
  values[best] = kNever;
  return best;
}

// Leaves the values of the chosen groups.
void choose_groups(float* values, const ExpertChoice& choice) {
  const int32_t size = choice.count / choice.groups;
  float sums[kMaxExperts];
  bool stays[kMaxExperts] = {};
  for (int32_t g = 0; g < choice.groups; ++g) {
    float two[2] = {kNever, kNever};
    for (const float value : std::span(values + g * size, static_cast<size_t>(size))) {
      two[1] = std::max(two[1], std::min(two[0], value));
      two[0] = std::max(two[0], value);
    }
    sums[g] = two[0] + two[1];
  }
  for (int32_t i = 0; i < choice.chosen_groups; ++i) stays[take_best(sums, choice.groups)] = true;
  for (int32_t g = 0; g < choice.groups; ++g) {
    if (!stays[g]) std::fill_n(values + g * size, size, kNever);
  }
}

void choose_of_row(const cpu::KernelTable& table,
                   int32_t* ids,
                   float* weights,
                   float* scores,
                   const ExpertChoice& choice) {
  (choice.sigmoid ? sigmoid_of : softmax_of)(table, scores, choice.count);
  float values[kMaxExperts];
  for (int32_t e = 0; e < choice.count; ++e) {
    values[e] = scores[e] + (choice.correction != nullptr ? choice.correction[e] : 0.0f);
    if (!(values[e] > kWorst)) values[e] = kWorst;
  }
  if (choice.groups > 1) choose_groups(values, choice);
  for (int32_t i = 0; i < choice.per_row; ++i) ids[i] = take_best(values, choice.count);
  std::sort(ids, ids + choice.per_row);
  float sum = 0.0f;
  for (int32_t i = 0; i < choice.per_row; ++i) sum += weights[i] = scores[ids[i]];
  const float divisor = choice.normalised ? sum + 1e-20f : 1.0f;  // sigmoids may all be 0
  for (int32_t i = 0; i < choice.per_row; ++i) weights[i] = weights[i] / divisor * choice.scale;
}

}  // namespace

void choose_experts(Context& ctx,
                    int32_t* ids,
                    float* weights,
                    const ExpertLogits& logits,
                    const ExpertChoice& choice) {
  OUTRIDER_CHECK(choice.count <= kMaxExperts && choice.per_row <= choice.count);
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  const bool small = logits.rows * choice.count < kInlineScores;
  ctx.threads().for_range(logits.rows, small, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      choose_of_row(table,
                    ids + r * choice.per_row,
                    weights + r * choice.per_row,
                    logits.data + r * logits.stride,
                    choice);
    }
  });
}

void sigmoid(Context& ctx, float* x, int64_t count) {
  const cpu::KernelTable& table = cpu::kernels_of(ctx.isa());
  ctx.threads().for_range(count, count < kInlineScores, [&](int64_t begin, int64_t end) {
    sigmoid_of(table, x + begin, end - begin);
  });
}

void fold_slices(
    Context& ctx, float* out, float* slices, int64_t rows, int64_t num_slices, int64_t n) {
  const bool small = rows * num_slices * n < kInlineElements;
  ctx.threads().for_range(rows, small, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* own = slices + r * num_slices * n;
      fold_in_tree(own, static_cast<size_t>(num_slices), static_cast<size_t>(n));
      std::copy_n(own, n, out + r * n);
    }
  });
}

}  // namespace outrider::ops
