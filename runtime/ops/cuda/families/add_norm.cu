// Norms of every kind, with the sum into the residual stream that comes before: what norm.cu does
// for llama's alone. One block per row; sums over a row are folded in an order that only its length
// decides.
#include "runtime/ops/cuda/exchange/norm_row.h"
#include "runtime/ops/cuda/op_table.h"

namespace outrider::gpu {
namespace {

// The sum of term(element) over the row, in all threads; each has its own elements in front of it.
template <typename Term>
OUTRIDER_DEVICE float sum_over_row(float* values, uint32_t n, const Term& term) {
  float sum = 0.0f;
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) sum = exact_add(sum, term(values[i]));
  sync_block();  // the last sum is read
  return sum_over_block(sum, values + n);
}

OUTRIDER_DEVICE float inverse_root(float squares, uint32_t n, float eps) {
  const float mean = divide(squares, static_cast<float>(n));
  return divide(1.0f, square_root(exact_add(mean, eps)));
}

OUTRIDER_DEVICE float square(float value) { return exact_mul(value, value); }

// The row with what comes to it, in shared memory and back where it lies.
OUTRIDER_DEVICE void take_row(const AddNormArgs& args, size_t first, float* values) {
  const NormArgs& norm = args.norm;
  const auto n = static_cast<uint32_t>(norm.out.n);
  const bool has_part = norm.part != nullptr;
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    values[i] = has_part ? norm.part[first + i] : norm.x[first + i];
  }
  if (!has_part) return;
  float factor = 1.0f;
  if (args.part_weight != nullptr) {
    factor = inverse_root(sum_over_row(values, n, square), n, norm.eps);
  }
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    float part = values[i];
    if (args.part_weight != nullptr) {
      part = exact_mul(exact_mul(part, factor), args.part_weight[i]);
    }
    values[i] = exact_mul(exact_add(norm.x[first + i], exact_mul(args.factor, part)), args.scale);
    if (!norm.selected) norm.x[first + i] = values[i];
  }
}

OUTRIDER_DEVICE void store_row(const AddNormArgs& args, int32_t out_row, float* values) {
  const NormArgs& norm = args.norm;
  const auto n = static_cast<uint32_t>(norm.out.n);
  float mean = 0.0f;
  float factor = 1.0f;
  if (args.subtracts_mean) {
    mean =
        divide(sum_over_row(values, n, [](float value) { return value; }), static_cast<float>(n));
  }
  if (norm.weight != nullptr) {
    const auto distance = [=](float value) { return square(exact_add(value, -mean)); };
    factor = inverse_root(sum_over_row(values, n, distance), n, norm.eps);
  }
  for (uint32_t i = thread_id(); i < n; i += kNormThreads) {
    float value = values[i];
    if (norm.weight != nullptr) {
      value = exact_mul(exact_mul(exact_add(value, -mean), factor), norm.weight[i]);
    }
    if (args.bias != nullptr) value = exact_add(value, args.bias[i]);
    store_activation(norm.out, out_row, static_cast<int32_t>(i), value);
  }
}

OUTRIDER_KERNEL(kNormThreads) void add_norm_rows(AddNormArgs args) {
  wait_for_predecessor();
  let_successor_begin();
  const NormArgs& norm = args.norm;
  const auto out_row = static_cast<int32_t>(block_id().x);
  const StepCounts& counts = *norm.step.counts;
  if (out_row >= (norm.selected ? counts.num_logit_rows : counts.num_rows)) return;
  const int32_t row = norm.selected ? norm.step.logit_rows[out_row] : out_row;
  auto* const values = shared_memory<float>();  // [n], then what sum_over_block() wants
  take_row(args, static_cast<size_t>(row) * static_cast<size_t>(norm.out.n), values);
  if (norm.out.data != nullptr) store_row(args, out_row, values);
}

}  // namespace

void add_norm(Stream& stream, const AddNormArgs& args) {
  launch(stream,
         add_norm_rows,
         {.grid = {static_cast<uint32_t>(args.norm.max_rows)},
          .threads = kNormThreads,
          .shared_bytes = norm_shared_bytes(args.norm.out.n),
          .overlaps = true},
         args);
}

}  // namespace outrider::gpu
