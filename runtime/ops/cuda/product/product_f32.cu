// Products in f32, for checks against the CPU backend, whose bits they have: per slice and stretch
// of 256 inputs one chain of fused multiply-adds in ascending order, the stretches added one by
// one, the slices folded in the tree. A block has 32 packed rows of the weights and 16 rows of the
// step, a thread one pair of outputs of one row.
#include "runtime/ops/cuda/product/product_kernels.h"

namespace outrider::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int32_t kBlockOuts = 32;
constexpr int32_t kBlockRows = 16;
constexpr int32_t kPart = 32;      // inputs in shared memory at a time
constexpr int32_t kStretch = 256;  // runtime/ops/cpu: kInnerChunk
constexpr int32_t kStride = kPart + 1;
constexpr size_t kSharedBytes = sizeof(float) * kStride * (kBlockOuts + kBlockRows);

struct Pair {
  float low = 0.0f;
  float high = 0.0f;
};

// Inputs [begin, begin + count) of `rows` rows from first_row on; rows past the end are zero.
OUTRIDER_DEVICE void load_part(float* shared,
                               const float* from,
                               int32_t n,
                               int32_t first_row,
                               int32_t rows,
                               int32_t num_rows,
                               int32_t begin,
                               int32_t count) {
  for (auto i = static_cast<int32_t>(thread_id()); i < rows * kPart;
       i += static_cast<int32_t>(kThreads)) {
    const int32_t row = first_row + i / kPart;
    const int32_t at = i % kPart;
    const bool is_there = row < num_rows && at < count;
    shared[i / kPart * kStride + at] =
        is_there ? from[static_cast<size_t>(row) * static_cast<size_t>(n) +
                        static_cast<size_t>(begin + at)]
                 : 0.0f;
  }
}

// Where this thread's two outputs and its row lie in the block.
struct ThreadPlace {
  int32_t out;  // of the first output; the other is 8 further
  int32_t row;
};
OUTRIDER_DEVICE ThreadPlace thread_place() {
  const auto thread = static_cast<int32_t>(thread_id());
  return {thread / 8 % 2 * 16 + thread % 8, thread / 16};
}

// One chain over [begin, end), at most kStretch inputs.
OUTRIDER_DEVICE Pair sum_stretch(
    const ProductArgs& args, int32_t first_out, int32_t first_row, int32_t begin, int32_t end) {
  auto* const weights = shared_memory<float>();
  float* const inputs = weights + kBlockOuts * kStride;
  const Matrix& matrix = args.weights;
  const ThreadPlace place = thread_place();
  const int32_t num_rows = rows_of(args);
  Pair sum;
  for (int32_t part = begin; part < end; part += kPart) {
    const int32_t count = end - part < kPart ? end - part : kPart;
    sync_block();  // the part before has been read
    load_part(weights,
              static_cast<const float*>(matrix.data),
              matrix.n_in,
              first_out,
              kBlockOuts,
              matrix.n_out,
              part,
              count);
    load_part(inputs,
              static_cast<const float*>(args.in.data),
              matrix.n_in,
              first_row,
              kBlockRows,
              num_rows,
              part,
              count);
    sync_block();
    for (int32_t k = 0; k < count; ++k) {
      const float input = inputs[place.row * kStride + k];
      sum.low = fused_multiply_add(weights[place.out * kStride + k], input, sum.low);
      sum.high = fused_multiply_add(weights[(place.out + 8) * kStride + k], input, sum.high);
    }
  }
  return sum;
}

OUTRIDER_KERNEL(kThreads) void f32_product(ProductJob job) {
  wait_for_predecessor();
  let_successor_begin();
  const Matrix& matrix = job.product.weights;
  const int32_t first_out = static_cast<int32_t>(block_id().x) * kBlockOuts;
  const int32_t first_row = static_cast<int32_t>(block_id().y) * kBlockRows;
  const int32_t num_rows = rows_of(job.product);
  if (first_row >= num_rows) return;
  const ThreadPlace place = thread_place();
  const int32_t out = first_out + place.out;
  const int32_t row = first_row + place.row;
  const LeafTerms low_terms = leaf_terms(job.product, out);
  const LeafTerms high_terms = leaf_terms(job.product, out + 8);

  Pair waiting[3];  // partial folds, as a binary counter adds (product_wide.h)
  Pair now;
  int32_t begin = 0;
  for (int32_t slice = 0; slice < matrix.num_slices; ++slice) {
    const int32_t end = matrix.slice_ends[slice];
    now = {};
    for (; begin < end; begin += kStretch) {
      const int32_t stretch_end = begin + kStretch < end ? begin + kStretch : end;
      const Pair sum = sum_stretch(job.product, first_out, first_row, begin, stretch_end);
      now = {exact_add(now.low, sum.low), exact_add(now.high, sum.high)};
    }
    begin = end;
    now = {make_leaf(low_terms, slice, now.low), make_leaf(high_terms, slice, now.high)};
    bool is_left = false;
    OUTRIDER_UNROLL
    for (int level = 0; level < 3; ++level) {
      if (is_left) continue;
      is_left = (slice >> level & 1) == 0;
      Pair& other = waiting[level];
      if (is_left) {
        other = now;
      } else {
        now = {exact_add(other.low, now.low), exact_add(other.high, now.high)};
      }
    }
  }
  if (row < num_rows && out < matrix.n_out) finish_pair(job, out, row, now.low, now.high);
}

}  // namespace

void product_f32(Stream& stream, const ProductJob& job) {
  const ProductArgs& args = job.product;
  launch(stream,
         f32_product,
         {.grid = {static_cast<uint32_t>(whole_tiles(args.weights.n_out, kBlockOuts)),
                   static_cast<uint32_t>(whole_tiles(args.max_rows, kBlockRows))},
          .threads = kThreads,
          .shared_bytes = kSharedBytes,
          .overlaps = true},
         job);
}

}  // namespace outrider::gpu
