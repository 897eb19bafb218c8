// Root mean square norm of the residual stream, with the sum into it that comes before. One block
// per row; the sum over a row is folded in an order that only its length decides. Weights, and
// where the row lies, are read before the launch before has ended.
#include "runtime/ops/cuda/exchange/norm_row.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kVectorsAhead = 4;  // of a thread: a row of 8,192 is asked for at once

OUTRIDER_DEVICE Vector4 add(const Vector4& a, const Vector4& b) {
  const auto sum = [](uint32_t x, uint32_t y) {
    return bits_of(exact_add(float_of(x), float_of(y)));
  };
  return {sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z), sum(a.w, b.w)};
}

// The row, with the part that comes to it, into shared memory and back to where it lies. Whole
// vectors: n is a multiple of 4.
OUTRIDER_DEVICE void take_vectors(const NormArgs& args, size_t first, Vector4* values) {
  const auto count = static_cast<uint32_t>(args.out.n) / 4;
  auto* const x = reinterpret_cast<Vector4*>(args.x + first);
  const bool has_part = args.part != nullptr;
  const auto* const part = has_part ? reinterpret_cast<const Vector4*>(args.part + first) : nullptr;
  for (uint32_t begin = thread_id(); begin < count; begin += kVectorsAhead * kNormThreads) {
    Vector4 sums[kVectorsAhead] = {};
    Vector4 parts[kVectorsAhead] = {};
    OUTRIDER_UNROLL
    for (uint32_t j = 0; j < kVectorsAhead; ++j) {
      const uint32_t i = begin + j * kNormThreads;
      if (i < count) sums[j] = x[i];
      if (i < count && has_part) parts[j] = part[i];
    }
    OUTRIDER_UNROLL
    for (uint32_t j = 0; j < kVectorsAhead; ++j) {
      const uint32_t i = begin + j * kNormThreads;
      if (i >= count) break;
      if (has_part) {
        sums[j] = add(sums[j], parts[j]);
        if (!args.selected) x[i] = sums[j];
      }
      values[i] = sums[j];
    }
  }
}
OUTRIDER_DEVICE void take_elements(const NormArgs& args, size_t first, float* values) {
  OUTRIDER_ROLLED
  for (uint32_t i = thread_id(); i < static_cast<uint32_t>(args.out.n); i += kNormThreads) {
    float value = args.x[first + i];
    if (args.part != nullptr) {
      value = exact_add(value, args.part[first + i]);
      if (!args.selected) args.x[first + i] = value;
    }
    values[i] = value;
  }
}

OUTRIDER_KERNEL(kNormThreads) void norm_rows(NormArgs args) {
  const auto out_row = static_cast<int32_t>(block_id().x);
  const StepCounts& counts = *args.step.counts;
  const bool is_there = out_row < (args.selected ? counts.num_logit_rows : counts.num_rows);
  const int32_t row = is_there && args.selected ? args.step.logit_rows[out_row] : out_row;
  const auto n = static_cast<uint32_t>(args.out.n);
  const bool in_vectors = n % 4 == 0;
  auto* const values = shared_memory<float>();     // [n], then what store_normed_row() wants
  float* const weights = values + n + kNormWarps;  // [n]
  if (is_there && in_vectors) {
    for (uint32_t i = thread_id() * 4; i < n; i += kNormThreads * 4) {
      copy_async_16(weights + i, args.weight + i);
    }
  }
  end_copy_group();
  // What follows is a product, which reads nothing but weights before it waits for this launch: it
  // may ask for them while the launch before this one ends.
  let_successor_begin();
  wait_for_predecessor();
  if (!is_there) return;

  const size_t first = static_cast<size_t>(row) * n;
  if (in_vectors) {
    take_vectors(args, first, reinterpret_cast<Vector4*>(values));
  } else {
    take_elements(args, first, values);
  }
  wait_copies<0>();
  sync_block();
  float squares = 0.0f;
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    squares = fused_multiply_add(values[i], values[i], squares);
  }
  store_normed_row(args, out_row, values, squares, in_vectors ? weights : args.weight);
}

}  // namespace

void norm(Stream& stream, const NormArgs& args) {
  launch(stream,
         norm_rows,
         {.grid = {static_cast<uint32_t>(args.max_rows)},
          .threads = kNormThreads,
          .shared_bytes =
              norm_shared_bytes(args.out.n) + static_cast<size_t>(args.out.n) * sizeof(float),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
